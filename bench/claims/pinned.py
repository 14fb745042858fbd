"""A plan's runs at the commit that it names: `python -m bench.claims.pinned [--plan FILE] [RUN ...]`.

Checks that commit out in results/claims/pinned, brings the packed records along, runs what is not recorded, and packs
the records into this checkout after every tenth run. The curves are those of `bench.claims.run`, bit for bit; each run
is a fork of one process that has imported the libraries, which saves a third of a short run's time. Kill it any time.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

TREE = Path("results/claims/pinned")
PACKAGES = Path("results/packages")
"""In the tree: the packages under the names that they are imported by, in place of an installation."""
LIBRARIES = (
    "torch",
    "trl",
    "peft",
    "datasets",
    "gtpo.cli",
    "gtpo.run.session",
    "transformers.models.llama.modeling_llama",
)
PACK_EVERY = 10
INTERRUPTED = 130
"""What Typer returns, without standalone mode, for a command that a signal has stopped."""
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(64 << 20)}
"""For glibc. By default it gives a step's large blocks back to the kernel, which clears them again at the next step."""


def prepare(commit: str, packed: Path) -> Path:
    """Check the commit out where it is not, with the records that this checkout has. Returns the tree."""
    tree = TREE.resolve()
    if not (tree / ".git").exists():
        subprocess.run(["git", "worktree", "add", "--force", "--detach", tree, commit], check=True)
    packages = tree / PACKAGES / "gtpo"
    packages.mkdir(parents=True, exist_ok=True)
    for path in (*tree.glob("gtpo/*"), *(tree / name for name in ("rewards", "evalkit", "configs"))):
        if not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)
    shutil.copytree(packed, tree / packed, dirs_exist_ok=True)
    return tree


def run_forked(plan_file: Path, names: list[str], published: Path) -> None:
    """In the tree, with its modules: run what is not recorded. published: where the packed records are copied to.

    Exits with the names of the runs that failed; the others have been made.
    """
    from bench.claims.plan import load_plan
    from bench.claims.record import find_record, pack
    from bench.claims.run import LOGS, execute, pending

    plan = load_plan(plan_file)
    todo = pending(plan, plan.choose(names))
    known = {run.name for run in todo if find_record(plan, run) is not None}
    print(f"{len(todo)} runs to go", flush=True)
    for module in LIBRARIES:
        importlib.import_module(module)
    commands = importlib.import_module("gtpo.cli")
    commands.app = raising(commands.app)  # the commit's own runner records what a signal has stopped
    LOGS.mkdir(parents=True, exist_ok=True)

    def publish() -> None:
        pack(plan)
        shutil.copytree(plan.packed, published, dirs_exist_ok=True)

    failed = []
    try:
        for finished, run in enumerate(todo, start=1):
            begin, log = time.monotonic(), LOGS / f"{run.name}.log"
            if forked(lambda run=run: execute(plan, run), log):
                outcome = f"{time.monotonic() - begin:.0f} s"
            else:
                outcome = f"FAILED, see {log.resolve()}"
                failed.append(run.name)
            if run.name in known:  # a base whose weights are not on this disk: what was recorded of it first stays
                plan.record(run).unlink(missing_ok=True)
            print(f"[{finished}/{len(todo)}] {run.name} {outcome}", flush=True)
            if finished % PACK_EVERY == 0:
                publish()
    except KeyboardInterrupt:
        sys.exit("bench.claims: stopped; the same command goes on where it stopped")
    finally:
        publish()
    if failed:
        sys.exit(f"{len(failed)} runs failed: {', '.join(failed)}; the same command tries them again")


def raising(app: Callable[..., Any]) -> Callable[..., Any]:
    """Return a Typer app that raises KeyboardInterrupt where a signal has stopped a command, instead of returning."""

    def run(*args: Any, **kwargs: Any) -> Any:
        code = app(*args, **kwargs)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return code

    return run


def forked(call: Callable[[], None], log: Path) -> bool:
    """Return whether a call ended well in a fork of this process, whose output is appended to the log.

    Another process that needs the same run, a base as a rule, waits for it.
    """
    child = os.fork()
    if child:
        try:
            return os.waitpid(child, 0)[1] == 0
        except KeyboardInterrupt:  # the terminal has told the fork too, which stops after its step
            os.waitpid(child, 0)
            raise
    code = 1
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.dup2(file, 1)
        os.dup2(file, 2)
        call()
        code = 0
    except BaseException:  # the log has it; the other runs go on
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> None:
    """Prepare the tree and run in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", help="names of the plan; default: all")
    parser.add_argument("--plan", type=Path, default=Path("bench/claims/second.yaml"))
    parser.add_argument("--published", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.published is not None:
        run_forked(asked.plan, asked.runs, asked.published)
        return
    from bench.claims.plan import load_plan

    plan = load_plan(asked.plan)
    if plan.commit is None or plan.packed is None:
        sys.exit(f"{asked.plan} names no commit: python -m bench.claims.run runs it")
    tree = prepare(plan.commit, plan.packed)
    environment = {
        **KEEP_MEMORY,
        **os.environ,
        **plan.environment,
        "PYTHONPATH": f"{tree / PACKAGES}{os.pathsep}{tree}",
    }
    again = [sys.executable, "-P", __file__, "--plan", asked.plan, "--published", plan.packed.resolve(), *asked.runs]
    os.chdir(tree)
    os.execve(sys.executable, [str(word) for word in again], environment)


if __name__ == "__main__":
    main()
