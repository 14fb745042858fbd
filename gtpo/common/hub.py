"""Models of the Hugging Face Hub: whether it can be reached, what a CPU computes them with, and an adapter's base."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gtpo.common.errors import UserError
from gtpo.common.files import read_json
from gtpo.common.log import LOG

# What says of what kind a model or an adapter is.
DESCRIPTIONS = ("config.json", "adapter_config.json")

# The Hub cannot be reached if a connection takes longer; its libraries retry for a minute each.
CONNECT_S = 3.0


def _answers() -> bool:
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # behind a proxy, only a request can tell
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    port = endpoint.port or (80 if endpoint.scheme == "http" else 443)
    try:
        socket.create_connection((endpoint.hostname or "", port), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


def is_offline() -> bool:
    """Return whether the user has told the Hub's libraries to use only their cache."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


@contextlib.contextmanager
def cache_if_unreachable() -> Iterator[None]:
    """Set HF_HUB_OFFLINE if no connection to the Hub can be opened; warn if the block then ends without an error."""
    if is_offline() or _answers():
        yield
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Each reads the variable once, when it is imported.
    for module in "huggingface_hub.constants", "datasets.config":
        if module in sys.modules:
            sys.modules[module].HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    yield
    LOG.warning("the Hugging Face Hub does not answer; using what is cached (HF_HUB_OFFLINE=1)")


def not_cached(name: str, remedy: str) -> UserError:
    """Return the error for what is not in the Hub's cache while the Hub cannot be asked."""
    return UserError(
        f"{name} is not in the Hugging Face cache, and the Hub does not answer (or HF_HUB_OFFLINE is set); {remedy}"
    )


def check_model(name: str) -> None:
    """Raise UserError for a model that cannot be had: no folder, not on the Hub, gated, or the Hub is out of reach."""
    if Path(name).is_dir():
        return
    with cache_if_unreachable():
        from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache

        if is_offline():
            if not any(isinstance(try_to_load_from_cache(name, file), str) for file in DESCRIPTIONS):
                raise not_cached(name, "download it where there is a network, or name a model folder")
            return
        try:
            hf_hub_download(name, DESCRIPTIONS[0])
        except errors.GatedRepoError as error:
            raise UserError(
                f"{name} is gated: accept its terms on the Hugging Face Hub, then `hf auth login`"
            ) from error
        except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
            raise UserError(
                f"{name} is neither a folder here nor a model of the Hugging Face Hub (private: `hf auth login`)"
            ) from error
        except errors.EntryNotFoundError:  # an adapter has another config file
            return


def adapter_base(path: Path) -> str:
    """Return the base model that an adapter_config.json names. Raises UserError if it names none."""
    base = read_json(path).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise UserError(
            f"{path}: base_model_name_or_path is missing; set it to the model that the adapter was trained on"
        )
    return base


def has_bfloat16() -> bool:
    """Return whether this CPU has instructions that multiply bfloat16 (AVX512_BF16, AMX)."""
    import torch

    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def dtype_on_cpu(config: Any) -> str:
    """Return what `dtype: auto` means on a CPU for weights that are not trained, from a transformers config.

    bfloat16 if the weights are stored in it and the CPU multiplies it: about three times as fast. Else float32:
    weights that are stored in it would lose digits.
    """
    stored = str(getattr(config, "dtype", None)).removeprefix("torch.")
    return "bfloat16" if stored == "bfloat16" and has_bfloat16() else "float32"


def contiguous_head_rows(model: Any) -> None:
    """Give lm_head contiguous rows, also where `generate` cuts the last position out of a prompt's hidden states.

    torch multiplies other rows by frozen weights as a batch (pytorch issue 186148), for which a CPU copies the weights
    once a row: of SmolLM2-135M with an adapter 14 GB for 256 rows, and nearly half of the time of sampling.
    """
    if (head := model.get_output_embeddings()) is not None:
        head.register_forward_pre_hook(lambda head, rows: tuple(each.contiguous() for each in rows))
