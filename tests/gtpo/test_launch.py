"""`gtpo train` as configs/accelerate/ and configs/slurm/ start it: two gloo processes on a CPU, nothing stood in for.

DDP and the two nodes run as they are. FSDP2 and ZeRO-3 are sharded by accelerate's own wrappers, which it takes on GPUs
alone: `launched_on_cpu.py` says what is changed for that.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from commands import process, python
from safetensors.torch import load_file
from step_gradients import STEP, step_gradients, tiny_model
from test_gradients import assert_same
from test_train_run import PLAIN
from test_train_run import metrics as logged_metrics
from transformers import AutoModelForCausalLM

from gtpo.common.packages import installed
from gtpo.config import TrainConfig
from gtpo.inputs.tiny import build_tiny_model

pytestmark = pytest.mark.timeout(600)

HERE, ROOT = Path(__file__).resolve().parent, Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs/accelerate"
STEPS = 4
SHARDED = {"ddp": "optimizer.pt", "fsdp2": "pytorch_model_fsdp.bin", "zero3": "global_step2"}
"""What a checkpoint of each holds and the others' do not."""
needs_deepspeed = pytest.mark.skipif(not installed("deepspeed"), reason="deepspeed is not installed")
WRAPPERS = ["ddp", "fsdp2", pytest.param("zero3", marks=needs_deepspeed)]


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "two_nodes", "zero3"])
def test_accelerate_reads_its_config(name: str) -> None:
    config = load_config_from_file(str(CONFIGS / f"{name}.yaml"))
    assert config.mixed_precision == "no", "model.dtype decides; here it would overrule float32"
    assert config.num_processes == (16 if name == "two_nodes" else 8)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def launch(folder: Path, config: str, *command: str | Path, code: int = 0) -> str:
    """Run `command` in two processes under `accelerate launch`, which ends with `code`; return its standard error."""
    words = ["-m", "accelerate.commands.launch", "--config_file", CONFIGS / f"{config}.yaml", "--num_processes", "2"]
    words += ["--main_process_port", free_port(), *command]
    return python(*words, code=code, cwd=folder, env=environment(), timeout=300).stderr


def write_config(folder: Path) -> None:
    training = {
        **PLAIN["training"],
        "per_device_train_batch_size": 4,
        "max_steps": STEPS,
        "eval_steps": 2,
        "eval_samples": 2,
        "log_kl_steps": 2,
    }
    dataset = {**PLAIN["dataset"], "limit": 12, "validation_problems": 3}
    (folder / "run.yaml").write_text(yaml.safe_dump({**PLAIN, "training": training, "dataset": dataset}))


def metrics(folder: Path) -> list[dict[str, Any]]:
    return logged_metrics(folder / "results/train/run")


@pytest.mark.slow
@pytest.mark.parametrize("config", WRAPPERS)
def test_gradient_is_that_of_one_process(config: str, tmp_path: Path) -> None:
    launch(tmp_path, config, HERE / "step_gradients.py", tmp_path, "sharded", "gtpo", "4")
    before, after = dict(tiny_model()[0].named_parameters()), load_file(tmp_path / "after/model.safetensors")
    # FSDP2 saves tied weights under both names.
    found = {name: (weight.detach() - after[name]) / STEP for name, weight in before.items()}
    assert_same(found, step_gradients(tmp_path / "whole.pt", "gtpo", 8, 1))


@pytest.mark.slow
@pytest.mark.parametrize("config", WRAPPERS)
def test_run_validates_resumes_and_saves_whole_weights(config: str, tmp_path: Path) -> None:
    write_config(tmp_path)
    script = ["-m", "gtpo"] if config == "ddp" else [HERE / "launched_on_cpu.py"]
    launch(tmp_path, config, *script, "train", "run.yaml")
    run = tmp_path / "results/train/run"
    assert len(pq.read_table(next((run / "completions").glob("*.parquet")))) == 8, "those of both processes"
    about = json.loads((run / "run.json").read_text())
    assert (about["processes"], about["status"], about["step"]) == (2, "finished", STEPS)
    whole, rows = load_file(run / "final/model.safetensors"), metrics(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["step"] for row in rows if "validation/pass@1" in row] == [2, 4]
    assert [row["step"] for row in rows if "kl/untrained" in row] == [2, 4]
    assert rows[-1]["kl/untrained"] > 0
    assert (run / "checkpoints/checkpoint-2" / SHARDED[config]).exists(), "it was not sharded"
    model = AutoModelForCausalLM.from_pretrained(run / "final")  # an ordinary model folder, nothing gathered later
    expected = {name: parameter.shape for name, parameter in model.named_parameters()}
    assert expected.items() <= {name: weight.shape for name, weight in whole.items()}.items()

    # As if the processes had died after the checkpoint of step 2.
    for path in (run / "checkpoints/checkpoint-4", run / "final", run / "best"):
        shutil.rmtree(path)
    (run / "run.json").write_text(json.dumps({**about, "status": "running"}))
    launch(tmp_path, config, *script, "train", "run.yaml")
    assert metrics(tmp_path) == rows
    again = load_file(run / "final/model.safetensors")
    assert all(torch.equal(again[name], weight) for name, weight in whole.items())


@pytest.mark.slow
def test_fsdp2_in_bfloat16_rounds_no_statistic(tmp_path: Path) -> None:
    """accelerate's policy would hand over log-probabilities and entropies, and the loss, in bfloat16."""
    model, tokenizer = build_tiny_model(TrainConfig.model_validate(PLAIN).model.build, max_seq_length=96, seed=0)
    for part in (model.to(torch.bfloat16), tokenizer):
        part.save_pretrained(tmp_path / "base")
    write_config(tmp_path)
    config = yaml.safe_load((tmp_path / "run.yaml").read_text())
    config["model"] = {"model_name": "base", "lora_rank": 4, "dtype": "bfloat16", "max_seq_length": 96}
    config["training"] |= {"eval_steps": None, "max_steps": 2, "log_kl_steps": 1}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    launch(tmp_path, "fsdp2", HERE / "launched_on_cpu.py", "train", "run.yaml")
    about = json.loads((tmp_path / "results/train/run/run.json").read_text())
    assert (about["dtype"], about["initial_entropy"]["samples"]) == ("bfloat16", 12)
    losses = torch.tensor([row["loss"] for row in metrics(tmp_path)])
    assert (losses != losses.bfloat16()).all()
    assert metrics(tmp_path)[0]["kl/untrained"] == 0, "the adapter is new: with it and without, the policy is one"


COLLAPSING = """
import sys
from dataclasses import replace
from gtpo import cli
import launched_on_cpu
from gtpo.train.health import Health
plain = Health.observe
def observe(self, step, row):
    verdict = plain(self, step, row)
    return replace(verdict, collapsed="made up") if step == 3 else verdict
Health.observe = observe
launched_on_cpu.shard_on_cpu()
sys.argv = ["gtpo", *sys.argv[1:]]
cli.app()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "words", "last_step"),
    [
        ("ddp", "rolled back to the weights of step", STEPS),
        ("fsdp2", "collapse, and no rollback (sharded weights cannot be put back in place): made up", 3),
    ],
)
def test_rollback_or_a_sentence(config: str, words: str, last_step: int, tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "collapsing.py").write_text(COLLAPSING)
    flags = ("--health.on_collapse", "rollback", "--training.eval_steps", "null")
    said = launch(
        tmp_path, config, tmp_path / "collapsing.py", "train", "run.yaml", *flags, code=int("no rollback" in words)
    )
    assert words in said
    assert [row["step"] for row in metrics(tmp_path)][-1] == last_step
    assert load_file(tmp_path / "results/train/run/best/model.safetensors")


def agents(folder: Path, *, command: tuple[str, ...]) -> None:
    """Start two_nodes.yaml's two agents on this machine, one process each."""
    words = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / "two_nodes.yaml")]
    words += ["--num_processes", "2", "--main_process_ip", "127.0.0.1", "--main_process_port", free_port()]
    running = [
        subprocess.Popen(
            [*words, "--machine_rank", rank, *command],
            cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in "01"
    ]  # fmt: skip
    try:
        told = [process.communicate(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], told


@pytest.mark.slow
def test_two_nodes_make_one_run(tmp_path: Path) -> None:
    write_config(tmp_path)
    agents(tmp_path, command=("-m", "gtpo", "train", "run.yaml"))
    about = json.loads((tmp_path / "results/train/run/run.json").read_text())
    assert (about["processes"], about["status"]) == (2, "finished")


# -- Slurm -------------------------------------------------------------------------------------------------------------

SBATCH = sorted((ROOT / "configs/slurm").glob("*.sbatch"))


@pytest.mark.parametrize("path", SBATCH, ids=lambda path: path.stem)
def test_slurm_file_is_what_sbatch_and_bash_take(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("#!/bin/bash\n")
    assert "#SBATCH --ntasks-per-node=1" in text, "accelerate starts the processes of a node"
    process("bash", "-n", path)
    if shutil.which("shellcheck"):
        process("shellcheck", path)


def slurm_job(folder: Path, **stand_ins: str) -> dict[str, str]:
    """Return the environment of a job on two nodes in which Slurm's commands are the given scripts."""
    (folder / "bin").mkdir(parents=True)
    for name, text in {"scontrol": "printf 'node7\\nnode9\\n'\n", **stand_ins}.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}")
        (folder / "bin" / name).chmod(0o755)
    slurm = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[7,9]", "SLURM_GPUS_PER_NODE": "8", "SLURM_JOB_ID": "12"}
    return {**os.environ, **slurm, "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize("code", [0, 3])
def test_slurm_training_makes_the_stop_file_before_the_end_and_waits_for_the_run(code: int, tmp_path: Path) -> None:
    """With srun as a run that ends when it is told, after it met the file."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results/slurm-12.stop").touch()  # of the same job before it was requeued
    waiting = (
        'if [ -e "$GTPO_STOP_FILE" ]; then exit 9; fi\ntouch started\n'
        'until [ -e "$GTPO_STOP_FILE" ]; do sleep 0.05; done\n'
        f"until [ -e go ]; do sleep 0.05; done\ntouch saved\nexit {code}\n"
    )
    job = subprocess.Popen(
        ["bash", ROOT / "configs/slurm/train.sbatch", "run.yaml"], cwd=tmp_path, env=slurm_job(tmp_path, srun=waiting)
    )
    while not (tmp_path / "started").exists():
        time.sleep(0.02)
    job.send_signal(signal.SIGTERM)  # B:TERM reaches the script alone
    while not (tmp_path / "results/slurm-12.stop").exists():
        time.sleep(0.02)
    assert job.poll() is None, "it waits for the run"
    (tmp_path / "go").touch()
    assert job.wait() == code
    assert (tmp_path / "saved").exists()
    assert list((tmp_path / "results").iterdir()) == []
    assert "#SBATCH --signal=B:TERM@300" in (ROOT / "configs/slurm/train.sbatch").read_text()


GPUS = [
    ({"SLURM_GPUS_ON_NODE": "4", "SLURM_GPUS_PER_NODE": "h100:4"}, 4),
    ({"SLURM_GPUS_ON_NODE": "4"}, 4),  # --gres
    ({"SLURM_GPUS_PER_NODE": "h100:4"}, 4),
    ({"SLURM_GPUS_PER_NODE": "gpu:h100:16"}, 16),
    ({"SLURM_GPUS_PER_NODE": "2"}, 2),
    ({}, 8),
]


@pytest.mark.parametrize(("variables", "gpus"), GPUS)
@pytest.mark.parametrize("name", ["train", "eval"])
def test_slurm_file_takes_the_gpus_of_its_node_however_they_were_asked_for(
    name: str, variables: dict[str, str], gpus: int, tmp_path: Path
) -> None:
    job = slurm_job(tmp_path, srun='printf "%s\\n" "$@"\n')
    del job["SLURM_GPUS_PER_NODE"]
    script = ROOT / f"configs/slurm/{name}.sbatch"
    words = process("bash", script, "demo/gtpo", cwd=tmp_path, env=job | variables, timeout=60).stdout.split("\n")
    flag, value = ("--num_processes", 2 * gpus) if name == "train" else ("--serve", f"--data-parallel-size {gpus}")
    assert words[words.index(flag) + 1] == str(value)


def test_slurm_training_leaves_its_last_node_to_the_server(tmp_path: Path) -> None:
    script = ["bash", ROOT / "configs/slurm/train.sbatch", "demo/gtpo"]
    job = slurm_job(tmp_path, srun='echo "$@" >> calls\n') | {"VLLM_MODEL": "vendor/model"}
    process(*script, cwd=tmp_path, env=job, timeout=60)
    served, trained = sorted((tmp_path / "calls").read_text().splitlines(), key=lambda line: "accelerate" in line)
    assert served.startswith("--nodes=1 --nodelist=node9 vllm serve vendor/model --port 8000")
    assert "--nodes=1 --nodelist=node7 " in trained
    assert trained.endswith("--rollout.engine vllm_server --rollout.server_host node9 --rollout.server_port 8000")
    job = slurm_job(tmp_path / "alone", scontrol="echo node7\n") | {"SLURM_NNODES": "1", "VLLM_MODEL": "vendor/model"}
    alone = process(*script, code=2, cwd=tmp_path, env=job, timeout=60)
    assert alone.stderr.count("needs a node more than training") == 1


def test_slurm_training_starts_each_node_with_its_rank(tmp_path: Path) -> None:
    """With srun as Slurm runs it, a task a node: what reaches accelerate is what its parser and the run need."""
    each_node = 'while [ "${1#-}" != "$1" ]; do shift; done\nfor id in 0 1; do SLURM_NODEID=$id "$@"; done\n'
    script, job = ROOT / "configs/slurm/train.sbatch", slurm_job(tmp_path, srun=each_node, accelerate='echo "$@"\n')
    done = process("bash", script, "configs/paper/llama-math-gtpo-g8.yaml", cwd=ROOT, env=job, timeout=240)
    ranks = []
    for line in done.stdout.splitlines():
        words = line.split()
        assert words.pop(0) == "launch"
        arguments = launch_command_parser().parse_args(words)
        ranks.append(arguments.machine_rank)
        assert (arguments.num_machines, arguments.num_processes) == (2, 16)
        assert arguments.main_process_ip == "node7"
        assert (ROOT / arguments.config_file).is_file()
        assert (arguments.training_script, arguments.training_script_args[0]) == ("gtpo", "train")
    assert ranks == [0, 1]
