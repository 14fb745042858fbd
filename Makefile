# Two commands for users: `make demo` and `make test`. The rest serves them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
VLLM_VENV ?= .venv-vllm
PIP_FLAGS ?= --quiet --disable-pip-version-check

.PHONY: help install demo clean-demo lint test test-vllm bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# The stamps make installs run once; editing pyproject.toml or constraints.txt runs them again.
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "==> installing into $(VENV) (about a minute; torch is the bulk of it)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	@touch $@

install: $(VENV)/.installed  ## make .venv

lint: $(VENV)/.installed-dev  ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

test: $(VENV)/.installed-dev lint  ## lint, then all tests that this machine can run
	@$(BIN)/python -m pytest -m "not vllm"

clean:  ## remove caches
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
