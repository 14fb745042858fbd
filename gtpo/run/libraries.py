"""What the libraries are told before a run: to be quiet, and where to compute."""

from __future__ import annotations

import logging
import os
import warnings

from transformers.utils import logging as transformers_logging

from gtpo.common.log import LOG


def quiet_libraries() -> None:
    """Keep the libraries' own messages off the terminal, except with --verbose. Their errors still raise."""
    import datasets

    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    if LOG.isEnabledFor(logging.DEBUG):
        return
    transformers_logging.set_verbosity_error()
    for name in ("accelerate", "trl", "datasets", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(transformers|trl|accelerate|peft|torch)(\.|$)")


def settle_on_cpu() -> None:
    """Tell accelerate and DeepSpeed, before they look, that this machine has no accelerator."""
    # Process 1 would have the device cpu:1, onto which torch.load puts no checkpoint.
    os.environ.setdefault("ACCELERATE_TORCH_DEVICE", "cpu")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # it warns on stdout that it found none
