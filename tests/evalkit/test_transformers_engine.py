"""What MODEL stands for, by what lies on disk; the transformers engine against transformers' own generate, and the same
samples however a run is cut."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from gtpo.common.errors import UserError
from gtpo.evalkit.engines.base import Prompt, Sampling, Task, sample_seed
from gtpo.evalkit.engines.model_ref import check_adapter, fingerprint, load_config, load_tokenizer, resolve_model
from gtpo.evalkit.engines.transformers import TransformersEngine, _presence_penalty, plan_batches
from gtpo.rewards.completions import decode_completion
from gtpo.rewards.data.arithmetic import arithmetic_problems
from gtpo.rewards.data.problem import chat_messages
from gtpo.runs.eval_folder import Sample
from gtpo.runs.prompt import PromptRenderer


def weights(folder: Path, content: bytes = b"weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(content)
    return folder


def train_run(folder: Path, status: str = "finished", best: bool = True) -> Path:
    weights(folder / "final")
    weights(folder / "checkpoints/checkpoint-50")
    if best:
        weights(folder / "best")
    (folder / "run.json").write_text(json.dumps({"method": "gtpo", "preset": "gtpo", "status": status}))
    (folder / "config.yaml").write_text(
        "dataset: {system_instruction: Think hard.}\nmodel: {max_seq_length: 2048}\n"
        "training: {max_prompt_length: 512, max_completion_length: null}\n"
    )
    return folder


def test_a_train_run_by_path_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = train_run(tmp_path / "results/train/mine")
    for name in (str(run), "mine"):
        ref = resolve_model(name)
        assert Path(ref.source).resolve() == run / "best"
        assert (ref.name, ref.train_run, ref.method, ref.preset) == ("mine", "mine", "gtpo", "gtpo")
        assert ref.prompt is not None
        assert (ref.prompt.system, ref.max_tokens, ref.checkpoint) == ("Think hard.", 2048 - 512, "best")
    assert resolve_model("mine", checkpoint="final").source.endswith("mine/final")
    between = resolve_model("mine", checkpoint="checkpoint-50")
    assert (between.checkpoint, between.name, between.train_run) == ("checkpoint-50", "mine-checkpoint-50", "mine")
    with pytest.raises(UserError, match=r'no checkpoint "checkpoint-51"\. Did you mean "checkpoint-50"'):
        resolve_model("mine", checkpoint="checkpoint-51")
    with pytest.raises(UserError, match=r'no model "mien".*Did you mean "mine"'):
        resolve_model("mien")


def test_a_run_without_best_or_without_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(train_run(tmp_path / "run", status="running", best=False))
    ref = resolve_model(run)
    assert ref.checkpoint == "final"
    # A folder of that name beside the command is no part of the run.
    (tmp_path / "best").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"has no best/ yet \(status: running\)"):
        resolve_model(run, checkpoint="best")
    assert "is running: evaluating final/ as it is" in caplog.text


def test_adapters(tmp_path: Path) -> None:
    base = weights(tmp_path / "base")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    ref = resolve_model(str(adapter))
    assert (ref.source, ref.adapter) == (str(base), adapter)
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "gone")}))
    with pytest.raises(UserError, match=r"its base model .*gone is not there"):
        resolve_model(str(adapter))


def test_fingerprint_notices_every_part(tmp_path: Path) -> None:
    folder = weights(tmp_path / "m", bytes(3_000_000))
    before = fingerprint(folder)
    assert fingerprint(folder) == before
    for position in (0, 1_500_000, 2_999_999):
        content = bytearray(3_000_000)
        content[position] = 1
        (folder / "model.safetensors").write_bytes(content)
        assert fingerprint(folder) != before


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path):  # type: ignore[no-untyped-def]
    return load_tokenizer(resolve_model(str(tiny_model)))


@pytest.fixture(scope="module")
def tasks(tokenizer) -> list[Task]:  # type: ignore[no-untyped-def]
    problems = list(arithmetic_problems("test", 6))
    asked = [chat_messages(p.problem) for p in problems]
    rendered = zip(problems, asked, PromptRenderer(tokenizer).render(asked), strict=True)
    return [Task("arithmetic", p.id, Prompt(messages, *prompt), ()) for p, messages, prompt in rendered]


def engine(tiny_model: Path, tokenizer, **sampling: float) -> TransformersEngine:  # type: ignore[no-untyped-def]
    settings = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 12, "n": 4, "seed": 0, **sampling}
    return TransformersEngine(resolve_model(str(tiny_model)), tokenizer, Sampling(**settings), rows=16)  # type: ignore[arg-type]


def wanting(tasks: list[Task], indices: range) -> list[Task]:
    return [Task(t.benchmark, t.question_id, t.prompt, tuple(indices)) for t in tasks]


def collect(source: TransformersEngine, tasks: list[Task]) -> dict[tuple[str, int], Sample]:
    return {(g.question_id, g.sample_index): g for batch in source.generate(tasks) for g in batch}


def test_batches_do_not_depend_on_what_is_missing(tasks: list[Task]) -> None:
    every = plan_batches(wanting(tasks, range(64)), 64, 32)
    blocks = [(0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 48), (48, 64)]
    assert sorted({(b.first, b.last) for b in every}) == blocks
    shape = [([t.question_id for t in b.tasks], b.first, b.last) for b in every]
    assert sorted(i for b in every for i in range(b.first, b.last) for _ in b.tasks) == sorted(
        i for i in range(64) for _ in tasks
    )
    assert all(len(b.tasks) * (b.last - b.first) <= 32 for b in every)
    later = plan_batches(wanting(tasks, range(16, 64)), 64, 32)
    assert [([t.question_id for t in b.tasks], b.first, b.last) for b in later] == shape[-len(later) :]
    one = [Task(t.benchmark, t.question_id, t.prompt, (9,) if i == 2 else ()) for i, t in enumerate(tasks)]
    (batch,) = plan_batches(one, 64, 32)
    assert ([t.question_id for t in batch.tasks], batch.first, batch.last) in shape


def test_seeds_depend_on_the_sample_alone() -> None:
    seeds = [sample_seed(0, "gsm8k", "gsm8k/test/0", i) for i in range(64)]
    assert np.all(np.diff(seeds) == 1)  # vLLM counts a request's samples up from its seed
    assert sample_seed(1, "gsm8k", "gsm8k/test/0", 0) not in seeds
    assert all(0 <= sample_seed(s, "b", "q", 2**31 - 1) < 2**31 for s in range(50))


def sampling(temperature: float, top_p: float, **options: float) -> Sampling:
    return Sampling(temperature, top_p, max_tokens=1, n=1, seed=0, **options)  # type: ignore[arg-type]


def test_the_presence_penalty_lowers_what_a_completion_has() -> None:
    penalise = _presence_penalty(sampling(1.0, 1.0, presence_penalty=1.5), 2)
    lowered = penalise(torch.tensor([[4, 4, 1, 1, 3]]), torch.zeros(1, 6))  # the prompt is 4 4
    assert lowered.tolist() == [[0, -1.5, 0, -1.5, 0, 0]]


def test_every_parameter_reaches_generate(tiny_model: Path, tokenizer, tasks: list[Task]) -> None:  # type: ignore[no-untyped-def]
    """What leaves one token only makes sampling greedy; the model's own recommendation decides nothing."""
    greedy = [
        g.completion for g in collect(engine(tiny_model, tokenizer, temperature=0.0), wanting(tasks, range(1))).values()
    ]
    for alone in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 0.9999}, {"temperature": 1e-4}):
        source = engine(tiny_model, tokenizer, **alone)
        assert [g.completion for g in collect(source, wanting(tasks, range(1))).values()] == greedy
    free = engine(tiny_model, tokenizer)
    assert free.model.generation_config.to_diff_dict().keys() <= {"transformers_version"}
    for other in ({"repetition_penalty": 1e9}, {"presence_penalty": 1e9}):
        source = engine(tiny_model, tokenizer, temperature=0.0, **other)
        assert [g.completion for g in collect(source, wanting(tasks, range(1))).values()] != greedy


def test_greedy_equals_generate(tiny_model: Path, tokenizer, tasks: list[Task]) -> None:  # type: ignore[no-untyped-def]
    source = engine(tiny_model, tokenizer, temperature=0.0, n=1)
    ours = collect(source, wanting(tasks, range(1)))
    assert len({len(t.prompt.ids or ()) for t in tasks}) > 1, "padding is exercised"
    for task in tasks:
        inputs = torch.tensor([task.prompt.ids])
        out = source.model.generate(inputs, max_new_tokens=12, do_sample=False)[0, inputs.shape[1] :]
        assert ours[task.question_id, 0].completion == decode_completion(tokenizer, out.tolist())
        assert ours[task.question_id, 0].tokens == len(out)


def test_a_prompt_is_read_once_for_all_of_its_samples(tiny_model: Path, tokenizer, tasks: list[Task]) -> None:  # type: ignore[no-untyped-def]
    source, read = engine(tiny_model, tokenizer, n=16, max_tokens=2), []
    source.model.register_forward_pre_hook(
        lambda _, args, inputs: read.append(inputs["input_ids"].shape), with_kwargs=True
    )
    list(source.generate(wanting(tasks[:1], range(8, 16))))
    assert read == [(1, len(tasks[0].prompt.ids or ()) - 1), (8, 1), (8, 1)], "its last token begins each sample"


# --- weights that are not all there ------------------------------------------------------------------------------


def without(model: Path, copy: Path, lost: str) -> Path:
    """A copy of a model folder without the tensors whose name contains `lost`."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, copy)
    tensors = load_file(model / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if lost not in name}
    assert len(kept) < len(tensors)
    save_file(kept, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def load(folder: Path, tokenizer) -> TransformersEngine:  # type: ignore[no-untyped-def]
    return TransformersEngine(resolve_model(str(folder)), tokenizer, sampling(1.0, 1.0), rows=4)


@pytest.mark.parametrize("lost", ["layers.0.", "lm_head", "norm.weight"])
def test_missing_weights_are_refused(lost: str, tiny_model: Path, tokenizer, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=rf"parameters are not in its weights.*first: .*{lost}"):
        load(without(tiny_model, tmp_path / "model", lost), tokenizer)


def test_weights_of_another_size_are_refused(tiny_model: Path, tokenizer, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    shutil.copytree(tiny_model, tmp_path / "model")
    config = json.loads((tiny_model / "config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps(config | {"intermediate_size": 32}))
    with pytest.raises(UserError, match=r"cannot be loaded|in another size"):
        load(tmp_path / "model", tokenizer)


def test_a_tied_head_is_not_missing(tiny_model: Path, tokenizer, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = without(tiny_model, tmp_path / "tied", "lm_head")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    model = load(folder, tokenizer).model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.fixture(scope="module")
def lora(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that does something, as PEFT saves it."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    folder = tmp_path_factory.mktemp("lora")
    model.save_pretrained(folder)
    return folder


def test_a_whole_adapter_is_loaded(lora: Path, tiny_model: Path, tokenizer) -> None:  # type: ignore[no-untyped-def]
    from safetensors.torch import load_file

    stored = load_file(lora / "adapter_model.safetensors")
    there = dict(load(lora, tokenizer).model.named_parameters())
    for name, tensor in stored.items():
        assert torch.equal(there[name.replace(".weight", ".default.weight")], tensor)


def test_the_head_is_not_copied_for_each_row(lora: Path, tokenizer, tasks: list[Task]) -> None:  # type: ignore[no-untyped-def]
    """As torch does on a CPU if a row of frozen weights' input does not lie behind the one before."""
    settings = Sampling(temperature=1.0, top_p=1.0, max_tokens=3, n=4, seed=0)
    source, whole = TransformersEngine(resolve_model(str(lora)), tokenizer, settings, rows=16), []
    source.model.get_base_model().lm_head.register_forward_pre_hook(
        lambda _, rows: whole.append(rows[0].is_contiguous())
    )
    list(source.generate(wanting(tasks, range(4))))
    assert len(whole) > 6
    assert all(whole)


def unprefixed(tensors: dict) -> dict:
    return {name.removeprefix("base_model.model."): tensor for name, tensor in tensors.items()}


def without_second_layer(tensors: dict) -> dict:
    return {name: tensor for name, tensor in tensors.items() if "layers.1." not in name}


def with_another_module(tensors: dict) -> dict:
    more = {name.replace("q_proj", "k_proj"): t.clone() for name, t in tensors.items() if "layers.0.self_attn" in name}
    return tensors | more


def of_another_size(tensors: dict) -> dict:
    return {name: torch.zeros(t.shape[0], 65) if "lora_A" in name else t for name, t in tensors.items()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (unprefixed, r"8 of 8 weights in the file are not those.*8 of 8 weights that it names are not in the file"),
        (without_second_layer, r", 4 of 8 weights that it names are not in the file \(first: .*layers\.1\."),
        (with_another_module, r": 2 of 10 weights in the file are not those.*k_proj"),
        (of_another_size, r"lora_A\.weight is \[4, 65\] in the adapter, \[4, 64\] for the base"),
    ],
)
def test_an_adapter_is_loaded_whole_or_refused(change, words: str, lora: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from safetensors.torch import load_file, save_file

    copy = tmp_path / "adapter"
    shutil.copytree(lora, copy)
    save_file(change(load_file(lora / "adapter_model.safetensors")), copy / "adapter_model.safetensors")
    ref = resolve_model(str(copy))
    with pytest.raises(UserError, match=words):
        check_adapter(ref, load_config(ref))
