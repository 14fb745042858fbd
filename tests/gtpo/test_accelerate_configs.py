"""The accelerate configs are what accelerate's own parser takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

FILES = sorted((Path(__file__).resolve().parents[2] / "configs/accelerate").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_accelerate_reads_it(path: Path) -> None:
    config = load_config_from_file(str(path))
    assert config.mixed_precision == "no", "model.dtype decides; here it would overrule float32"
    assert config.num_processes == (16 if path.stem == "two_nodes" else 8)


def test_there_is_one_for_each_way_of_scaling() -> None:
    assert [path.stem for path in FILES] == ["ddp", "fsdp2", "two_nodes", "zero3"]
