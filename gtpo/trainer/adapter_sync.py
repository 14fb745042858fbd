"""With LoRA, vLLM holds the base once and takes only the adapter at each synchronisation; nothing is ever merged.

TRL merges the adapter into the base, sends all weights, and takes it out again. In bfloat16 the base then drifts by a
rounding at each synchronisation, and in 4 bits most of the adapter is rounded away and the base with it. Here vLLM
starts with its LoRA layers, and only A and B follow, in a folder that it loads (a server by `/v1/load_lora_adapter`).

vLLM reads no bitsandbytes weights. A base in 4 bits is given to it unpacked, once, as it starts: the numbers that the
trainer computes with. What vLLM has no LoRA for is merged as TRL does, with a warning; refused if the base is packed.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file
from torch import Tensor
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration
from trl.import_utils import is_vllm_available

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.vllm_environment import CPU_KV_BLOCK, LORA_RANKS, lora_rank_slot
from gtpo.trainer.trl_seam import engine_options

if is_vllm_available():
    from vllm.lora.request import LoRARequest
    from vllm.utils.network_utils import get_open_port

# Name and number of the adapter in vLLM.
NAME, NUMBER = "policy", 1
# Completions that vLLM samples side by side, at least: TRL allows no more than a step's, and H_ini and the held-out
# problems are many more. The cache bounds them if memory is short.
SEQUENCES = 256


def adapter_obstacle(model: Any) -> str | None:
    """Return why vLLM cannot take the adapter of a PeftModel by itself; None if it can."""
    if len(model.active_adapters) != 1:
        return f"{len(model.active_adapters)} adapters are active"
    name = model.active_adapters[0]
    # Of DoRA, of other methods than LoRA, of modules_to_save, biases and embeddings, something else is trained.
    for which, parameter in model.named_parameters():
        if parameter.requires_grad and not re.search(r"\.lora_[AB]\.\w+\.weight$", which):
            return f"{which} is trained, and is no A or B of a LoRA layer"
    if (way := model.peft_config[name].init_lora_weights) not in (True, False, "gaussian", "orthogonal"):
        return f"init_lora_weights {way!r} has changed the base in memory"
    ranks = set()
    for layer, module in _adapted(model, name):
        if not hasattr(module.lora_A[name], "in_features"):
            return f"{layer} is no linear layer"
        ranks.add(module.r[name])
    if len(ranks) != 1 or max(ranks) > LORA_RANKS[-1]:
        return f"its ranks are {', '.join(map(str, sorted(ranks)))}; vLLM takes one, up to {LORA_RANKS[-1]}"
    return None


def _adapted(model: Any, adapter: str) -> list[tuple[str, Any]]:
    """Return (name in the base model, layer) of each layer that has the adapter."""
    base = model.get_base_model()
    return [(which, layer) for which, layer in base.named_modules() if adapter in getattr(layer, "lora_A", {})]


def adapter_tensors(model: Any) -> dict[str, Tensor]:
    """Return A [r, d_in] and B [d_out, r] of each layer in float32, under the names that vLLM reads; B is scaled."""
    name, tensors = model.active_adapters[0], {}
    for layer, module in _adapted(model, name):
        path = layer.replace("_checkpoint_wrapped_module.", "")
        for part, factor in (("lora_A", 1.0), ("lora_B", module.scaling[name])):
            weight = getattr(module, part)[name].weight.detach()
            weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight  # FSDP2 keeps it in parts
            tensors[f"base_model.model.{path}.{part}.weight"] = weight.float().cpu() * factor
    return tensors


def write_unpacked(model: Any, tokenizer: Any, folder: Path, dtype: torch.dtype) -> None:
    """Write the base of a 4-bit PeftModel as vLLM reads it: each weight as the trainer computes with it, in `dtype`."""
    from bitsandbytes.functional import dequantize_4bit

    base, weights = model.get_base_model(), dict[str, Tensor]()
    config = copy.deepcopy(base.config)
    del config.quantization_config
    config.dtype = dtype
    for name, parameter in base.named_parameters():
        if "lora_" not in name:
            packed = getattr(parameter, "quant_state", None)
            value = parameter.data if packed is None else dequantize_4bit(parameter.data, packed)
            weights[name.replace(".base_layer.", ".")] = value.to("cpu", dtype).contiguous()
    save_torch_state_dict(weights, folder)
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class AdapterGeneration(VLLMGeneration):
    """TRL's VLLMGeneration; a LoRA adapter goes to vLLM by itself."""

    # The adapter that goes to vLLM by itself; None if all weights do.
    adapter: str | None = None
    # A folder that both the trainer and vLLM can read.
    scratch: Path
    # The adapter of the last synchronisation, in there: a server reads it again with each request.
    written: tempfile.TemporaryDirectory[str] | None = None

    def _init_vllm(self) -> None:
        """Start the engine with its LoRA layers, if it takes the adapter by itself."""
        # TRL says how to install it.
        if not is_vllm_available():
            super()._init_vllm()
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.adapter = self._own_adapter()
        if self.adapter is not None and self.mode == "server":
            # No weights pass over NCCL, so no GPU is needed here.
            if self.accelerator.is_main_process:
                url = self.server_base_url or f"http://{self.server_host}:{self.server_port}"
                self.vllm_client = VLLMClient(base_url=url, connection_timeout=self.server_timeout)
            self.accelerator.wait_for_everyone()
            return
        # TRL takes 29500 if it is free, and so does another run that starts at the same time.
        os.environ.setdefault("MASTER_PORT", str(get_open_port()))
        options: dict[str, Any] = {"max_num_seqs": max(self.max_num_seqs or 0, SEQUENCES)}
        policy: Any = self.model
        if self._on_cpu():
            # vLLM compiles for a minute at each start, which on a CPU gains nothing that a run would notice.
            options |= {"enforce_eager": True, "block_size": CPU_KV_BLOCK}
        with tempfile.TemporaryDirectory(prefix="vllm-base-", dir=self.scratch) as folder:
            if self.adapter is not None:
                ((_, layer), *_) = _adapted(policy, self.adapter)
                slot = lora_rank_slot(layer.r[self.adapter])
                options |= {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": slot}
                if getattr(policy, "is_loaded_in_4bit", False):
                    dtype = layer.get_base_layer().compute_dtype
                    write_unpacked(policy, self.processing_class, Path(folder), dtype)
                    options |= {"dtype": dtype, "quantization": None, "model": folder}
                elif self._on_cpu():
                    # vLLM would take bfloat16 if the trainer has float32.
                    options["dtype"] = layer.get_base_layer().weight.dtype
            with engine_options(options):
                super()._init_vllm()
        if self.adapter is not None:
            request = LoRARequest(NAME, NUMBER, "loaded before")
            self.llm.generate = functools.partial(self.llm.generate, lora_request=request)

    def _on_cpu(self) -> bool:
        return self.mode == "colocate" and self.accelerator.device.type == "cpu"

    def _own_adapter(self) -> str | None:
        """Return the name of the adapter that vLLM takes by itself. Raises UserError if merging would round."""
        policy: Any = self.model
        if not is_peft_model(policy):
            return None
        quantized = getattr(policy, "is_quantized", False)
        obstacle = adapter_obstacle(policy)
        if self.enable_sleep_mode:
            obstacle = "vllm_enable_sleep_mode discards the base that vLLM holds"
        elif self._dist.is_fsdp and self._dist.fsdp_version == 1:
            obstacle = "FSDP 1 does not give an adapter's weights by themselves (fsdp_version: 2 does)"
        elif self.mode == "server" and quantized:  # 8 bits: TRL refuses an engine in this process
            obstacle = "a vLLM server has a base of its own, not the quantized one that is trained on"
        if obstacle is None:
            return str(policy.active_adapters[0])
        told = f"vLLM cannot take the adapter by itself: {obstacle}"
        if quantized:
            raise UserError(
                f"{told}. Merged into quantized weights it would be rounded away. Sample with the trainer's own model "
                "(rollout.engine: transformers; use_vllm=False), or load the base in bfloat16 (model.load_in_4bit: "
                "false)"
            )
        if self.accelerator.is_main_process:
            LOG.warning(f"{told}. It is merged into the base at each synchronisation, which rounds the base each time")
        return None

    def sync_weights(self) -> None:
        """Send vLLM the current adapter; all weights, if it does not take the adapter by itself."""
        if self.adapter is None:
            with reloaded_by_layers(self.llm) if self._on_cpu() else nullcontext():
                super().sync_weights()
            return
        layers = [layer for _, layer in _adapted(self.model, self.adapter)]
        parts = [part.weight for layer in layers for part in (layer.lora_A[self.adapter], layer.lora_B[self.adapter])]
        with self._dist.gather_params(parts):
            tensors = adapter_tensors(self.model)
        if self.mode == "colocate" or self.accelerator.is_main_process:
            targets, rank = sorted({name.split(".")[-3] for name in tensors}), len(next(iter(tensors.values())))
            about = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "target_modules": targets}
            before, self.written = self.written, tempfile.TemporaryDirectory(prefix="vllm-adapter-", dir=self.scratch)
            folder = Path(self.written.name).resolve()
            save_file(tensors, folder / "adapter_model.safetensors")
            (folder / "adapter_config.json").write_text(json.dumps(about))
            self._load(str(folder), rank)
            if before is not None:
                before.cleanup()
        self.accelerator.wait_for_everyone()

    def _load(self, folder: str, rank: int) -> None:
        """Let vLLM load the adapter from a folder, in the place of the last one."""
        if self.mode == "colocate":
            self.llm.llm_engine.add_lora(LoRARequest(NAME, NUMBER, folder, load_inplace=True))
            self.llm.reset_prefix_cache()
            return
        client = self.vllm_client
        loading: Any = {"lora_name": NAME, "lora_path": folder, "load_inplace": True}
        for path, body in (("v1/load_lora_adapter", loading), ("reset_prefix_cache", None)):
            answer = client.session.post(f"{client.base_url}/{path}", json=body)
            if answer.status_code != 200:
                raise UserError(
                    f"the vLLM server at {client.base_url} does not take the adapter (/{path}: {answer.status_code}, "
                    f"{answer.text[:300]}). Start it with VLLM_SERVER_DEV_MODE=1, VLLM_ALLOW_RUNTIME_LORA_UPDATING="
                    f"True and --enable-lora --max-lora-rank {lora_rank_slot(rank)}, where it can read {self.scratch}"
                )
        client.model = NAME


@contextmanager
def reloaded_by_layers(engine: Any) -> Iterator[None]:
    """Let all weights that are written inside into a vLLM engine in this process go through its layer-wise reload.

    vLLM's CPU backend packs the linear layers' weights as it loads them, so TRL cannot write into them (`'Parameter'
    object has no attribute 'weight_loader'`). The reload unpacks and packs again, but for an lm_head that is tied to
    the embedding (seen if oneDNN packs bfloat16, on an AVX-512 machine): it is packed again here.
    """
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload

    runner = engine.llm_engine.model_executor.driver_worker.model_runner
    initialize_layerwise_reload(runner.model)
    yield
    finalize_layerwise_reload(runner.model, runner.model_config)
    for layer in runner.model.modules():
        if hasattr(layer, "cpu_linear") and layer.weight.numel():  # linear layers keep only the packed copy
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
