"""Chunks of rows: every position once, those that may carry a gradient first, none much shorter than the others."""

from __future__ import annotations

import pytest
import torch

from gtpo.kernels.chunks import split


@pytest.mark.parametrize("seed", range(20))
def test_chunks_of_rows(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(6, 11, generator=draw) < 0.8
    needs = torch.rand(66, generator=draw) < (0.0, 0.3, 0.9, 1.0)[seed % 4]
    rows = int(torch.randint(1, 80, (), generator=draw))
    chunks = split(mask, needs, rows, whole_completions=False)
    positions = torch.cat([chunk.positions for chunk in chunks])
    assert positions.sort().values.tolist() == mask.reshape(-1).nonzero()[:, 0].tolist()
    sizes = [len(chunk.positions) for chunk in chunks]
    assert max(sizes) <= rows
    assert max(sizes) - min(sizes) <= 1
    taking = torch.cat([chunk.positions[: chunk.grad_rows] for chunk in chunks])
    assert taking.sort().values.tolist() == (mask.reshape(-1) & needs).nonzero()[:, 0].tolist()


def test_no_chunk_of_a_few_rows_of_its_own() -> None:
    """A second chunk for the few rows without a gradient would read all of lm_head for them."""
    needs = torch.ones(1024, dtype=torch.bool)
    needs[::30] = False
    (chunk,) = split(torch.ones(8, 128) > 0, needs, 1024, whole_completions=False)
    assert len(chunk.positions) == 1024
