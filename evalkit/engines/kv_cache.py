"""A key-value cache that is written in place: appending a token by concatenation copies the whole cache each step,
which on a CPU takes longer than the model's matrix products.
"""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, DynamicLayer

_SPARE = 64
"""Tokens by which a full buffer is enlarged."""


class GrowingLayer(DynamicLayer):
    """A DynamicLayer whose keys and values [rows, heads, tokens, size] are views of larger buffers."""

    _buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append states [rows, heads, new tokens, size]; return all keys and all values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        length = self.get_seq_length()
        needed = length + key_states.shape[-2]
        buffers = self._buffers
        if buffers is None or buffers[0].shape[-2] < needed:
            rows, heads, _, size = key_states.shape
            old = (self.keys, self.values)
            buffers = self._buffers = (
                key_states.new_empty((rows, heads, needed + _SPARE, size)),
                value_states.new_empty((rows, heads, needed + _SPARE, value_states.shape[-1])),
            )
            for buffer, states in zip(buffers, old, strict=True):
                if length and states is not None:
                    buffer[:, :, :length].copy_(states)
        buffers[0][:, :, length:needed] = key_states
        buffers[1][:, :, length:needed] = value_states
        self.keys, self.values = buffers[0][:, :, :needed], buffers[1][:, :, :needed]
        return self.keys, self.values

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        super().batch_repeat_interleave(repeats)
        self._buffers = None

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some rows."""
        super().batch_select_indices(indices)
        self._buffers = None


def grow_in_place(cache: Cache) -> None:
    """Make the plain layers of a cache append in place; sliding-window and other layers stay as they are."""
    for layer in cache.layers:
        if type(layer) is DynamicLayer:
            layer.__class__ = GrowingLayer
