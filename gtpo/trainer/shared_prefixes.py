"""Compute once what the rows of a batch have in common, and no padding: GTPO's and TRL's losses, other rounding.

A token that continues the same prefix in several rows is one node, computed once. All nodes go through the model as one
sequence; only attention goes row by row, each node after those of its own path, as in a batch that is padded on the
right. Hidden states are then put in the places of the batch again; a node's gradient is the sum of its rows'. The
result is that of the padded batch but for rounding.
"""

from __future__ import annotations

import functools
import sys
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gtpo.common.log import LOG
from gtpo.inputs.model import EXPERTS

# Implementations of attention that can go row by row.
ATTENTIONS = ("sdpa", "eager")


class Tree(NamedTuple):
    """N nodes, one for each prefix of a row."""

    ids: Tensor  # [1, N]
    positions: Tensor  # [1, N] of each node in its path, from 0
    paths: Tensor  # [1, 1, B, L] nodes of each row from its first token on; the last one fills a shorter row up
    places: Tensor  # [B, T] node of each token; of padding, 0


def prefix_tree(input_ids: Tensor, attention_mask: Tensor) -> Tree:
    """Return the tree of the rows of a batch; both [B, T], the mask 1 at tokens and 0 at padding."""
    kept = attention_mask.bool().cpu()
    # (node before it, token) -> node. -1: none is before it.
    nodes: dict[tuple[int, int], int] = {}
    positions, paths = list[int](), []
    places = torch.zeros(kept.shape, dtype=torch.long)
    for row, (ids, mask) in enumerate(zip(input_ids.cpu(), kept, strict=True)):
        path = [-1]
        for token in ids[mask].tolist():
            path.append(nodes.setdefault((path[-1], token), len(nodes)))
            positions += [len(path) - 2] * (len(nodes) > len(positions))
        paths.append(path[1:] or [0])
        places[row, mask] = torch.tensor(path[1:], dtype=torch.long)
    length = max(map(len, paths))
    filled = torch.tensor([path + path[-1:] * (length - len(path)) for path in paths])
    tokens = torch.tensor([[token for _, token in nodes]], dtype=input_ids.dtype)
    whole = Tree(tokens, torch.tensor([positions]), filled[None, None], places)
    return Tree(*(part.to(input_ids.device) for part in whole))


def by_rows(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, of: str, **options: Any
) -> tuple[Tensor, Any]:
    """Attend as the implementation `of` does; along the paths of a tree if they stand in the mask's place.

    query, key, value: [1, heads, N, D]; the paths are the only mask of whole numbers, and reach each layer as a mask
    does, also if gradient checkpointing computes it again.
    """
    plain = ALL_ATTENTION_FUNCTIONS.get(of) or sys.modules[type(module).__module__].eager_attention_forward
    if attention_mask is None or attention_mask.dtype != torch.long:
        attended: tuple[Tensor, Any] = plain(module, query, key, value, attention_mask, **options)
        return attended
    (rows, length), nodes = attention_mask.shape[2:], attention_mask.flatten()
    # index_select along the first dimension: its backward adds whole rows.
    parts = (part[0].transpose(0, 1).index_select(0, nodes) for part in (query, key, value))
    whole = [part.view(rows, length, *part.shape[1:]).transpose(1, 2) for part in parts]
    causal = None  # as sdpa is without a mask; what fills a row up comes after its tokens
    if of == "eager":
        causal = torch.full((1, 1, length, length), -torch.inf, dtype=query.dtype, device=query.device).triu(1)
    output, _ = plain(module, *whole, causal, **options)
    order = torch.arange(len(nodes), device=nodes.device)
    first = nodes.new_zeros(query.size(2)).scatter_reduce(0, nodes, order, "amin", include_self=False)
    return output.flatten(0, 1)[first][None], None


for _name in ATTENTIONS:
    AttentionInterface.register(f"{_name}_by_rows", functools.partial(by_rows, of=_name))
    AttentionMaskInterface.register(f"{_name}_by_rows", ALL_MASK_ATTENTION_FUNCTIONS[_name])


def obstacle(config: Any) -> str | None:
    """Return why a model of this (text) config cannot be computed along a tree; None: as far as the config says."""
    if config._attn_implementation not in ATTENTIONS:
        return f"attention `{config._attn_implementation}` does not go row by row; {' and '.join(ATTENTIONS)} do"
    kinds = set(getattr(config, "layer_types", None) or ())
    if others := kinds - {"full_attention"}:
        return f"the model has layers of {', '.join(sorted(others))}, not of full attention alone"
    if not kinds and getattr(config, "sliding_window", None):
        return f"the model attends to a window of {config.sliding_window} tokens"
    if any(getattr(config, name, None) for name in EXPERTS):
        return "the model is a mixture of experts, whose routing loss counts tokens"
    return None


def share_prefixes(model: Any) -> ExitStack:
    """Let a transformers causal LM compute the tokens that the rows of a batch share once, and no padding.

    Before any PEFT wrapping or sharding; until what is returned is closed. If the model is called with ids and a mask
    alone and without a cache, as trainers call it; generation is as before.

    Raises ValueError if the model cannot be computed so, also if a small batch shows it.
    """
    config = model.config.get_text_config()
    if why := obstacle(config):
        raise ValueError(why)
    # From the hook before a forward to the one after it.
    trees: list[Tree] = []

    def before(backbone: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        trees.clear()
        # Generation has a cache; what else a caller asks for beside ids and a mask is not known here.
        others = {key for key, value in kwargs.items() if value is not None and value is not False}
        if args or others != {"input_ids", "attention_mask"} or kwargs.get("use_cache") is not False:
            return None
        ids, mask = kwargs["input_ids"], kwargs["attention_mask"]
        if ids.dim() != 2 or mask.shape != ids.shape:
            return None
        trees.append(tree := prefix_tree(ids, mask))
        whole = {"input_ids": tree.ids, "attention_mask": tree.paths, "position_ids": tree.positions}
        return args, {**whole, "use_cache": False}

    def after(backbone: nn.Module, args: Any, output: Any) -> Any:
        if trees:
            output.last_hidden_state = output.last_hidden_state[0][trees.pop().places]
        return output

    # On "meta" another rank has the weights, and compares.
    expected = None if next(model.parameters()).device.type == "meta" else _small_batch(model)
    shared, plain = ExitStack(), config._attn_implementation
    shared.callback(setattr, config, "_attn_implementation", plain)
    config._attn_implementation = f"{plain}_by_rows"
    shared.callback(model.base_model.register_forward_pre_hook(before, with_kwargs=True).remove)
    shared.callback(model.base_model.register_forward_hook(after).remove)
    if expected is not None:
        try:
            change = _small_batch(model).double() - expected.double()
        except (RuntimeError, ValueError, AssertionError, AttributeError) as error:
            shared.close()
            raise ValueError(f"the model has an attention of its own, which does not go row by row ({error})") from None
        difference = float((change.norm(dim=1) / expected.double().norm(dim=1)).max())
        # A token that attends to others than its own has about 1.
        if not difference <= (0.1 if expected.dtype.itemsize == 2 else 0.01):
            shared.close()
            raise ValueError(f"without padding the model's hidden states are others (they differ by {difference:.0%})")
        LOG.info(f"prefixes are shared: a small batch's hidden states differ by {difference:.1e} from the padded ones")
    return shared


def _small_batch(model: Any) -> Tensor:
    """Return the hidden states [n, D] of the tokens of a small padded batch."""
    device, size, training = next(model.parameters()).device, model.config.get_text_config().vocab_size, model.training
    rows = torch.tensor([[0, 5, 6, 7, 8], [5, 6, 7, 9, 4], [5, 6, 3, 0, 0]], device=device) % size
    mask = torch.tensor([[0, 1, 1, 1, 1], [1] * 5, [1, 1, 1, 0, 0]], device=device)
    model.eval()  # no dropout
    with torch.no_grad():
        hidden: Tensor = model.base_model(input_ids=rows, attention_mask=mask, use_cache=False).last_hidden_state
    model.train(training)
    return hidden[mask.bool()]
