"""`gtpo` as the configs of accelerate start it, where accelerate itself would not shard: on a CPU.

Accelerate takes FSDP's and DeepSpeed's variables on GPUs alone; on a CPU it makes DDP of the first and one process of
the second, and says nothing. Two answers of its process state are changed here, no more: that DeepSpeed's processes
talk over gloo, and that FSDP's processes are some accelerator's. Everything after that is accelerate's own: the
plugins, the wrapping, the checkpoints.
Run by `accelerate launch --config_file ... launched_on_cpu.py train CONFIG.yaml`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from accelerate import PartialState
from accelerate.utils import DistributedType

from gtpo import cli


def uses(name: str) -> bool:
    return os.environ.get(f"ACCELERATE_USE_{name}") == "true"


def shard_on_cpu() -> None:
    """Change what accelerate's process state answers."""
    plain = PartialState.__init__
    if uses("DEEPSPEED"):
        import deepspeed

        # An all-reduce over shared memory, compiled for minutes as the process starts; gloo does without.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

    def changed(self: PartialState, cpu: bool = False, **kwargs: Any) -> None:
        if uses("DEEPSPEED"):
            plain(self, cpu=False, **{**kwargs, "backend": "gloo"})
            return
        plain(self, cpu=cpu, **kwargs)
        if uses("FSDP") and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_XPU

    PartialState.__init__ = changed  # type: ignore[method-assign]


if __name__ == "__main__":
    shard_on_cpu()
    sys.argv = ["gtpo", *sys.argv[1:]]
    cli.app()
