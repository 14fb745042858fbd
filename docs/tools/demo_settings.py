"""What the demo concludes on other processors: `python docs/tools/demo_settings.py FOLDER`, hours, resumable.

Runs `gtpo demo` in FOLDER/SETTING for three instruction sets and one and two threads, and writes the verdicts side by
side to results/published/demo/settings.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

from gtpo.run.demo import AGAINST_GRPO, RUNS

PAGE = Path(__file__).resolve().parents[2] / "results/published/demo/settings.md"
INSTRUCTIONS = ("default", "avx2", "avx512")
"""Values of ATEN_CPU_CAPABILITY; default is plain code without AVX."""

THREADS = (1, 2)
GTPO = (sys.executable, "-m", "gtpo")


def main() -> None:
    """Run what is missing, then write the page of the settings that are complete."""
    folder = Path(sys.argv[1])
    columns: dict[str, dict[str, str]] = {}
    for threads, instructions in product(THREADS, INSTRUCTIONS):
        here = folder / f"{instructions}-{threads}"
        here.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": instructions, "OMP_NUM_THREADS": str(threads)}
        subprocess.run([*GTPO, "demo"], cwd=here, env=environment, stdout=subprocess.DEVNULL, check=True)
        columns[f"{instructions}, {threads} thread{'s' * (threads > 1)}"] = {**told_by(here), **verdicts(here)}
        write(columns)


def verdicts(here: Path) -> dict[str, str]:
    """Each comparison of the demo in here -> its verdict and its interval in points."""
    found = {}
    for runs, baseline in ((RUNS, "demo-base"), (AGAINST_GRPO, "demo-grpo")):
        command = [*GTPO, "compare", *runs, "--baseline", baseline, "--format", "json"]
        told = json.loads(subprocess.run(command, cwd=here, capture_output=True, check=True).stdout)
        for record in told["records"]:
            if record["verdict"] and record["k"] == 1:
                low, mean, high = (100 * record[key] for key in ("difference_low", "difference", "difference_high"))
                pair = f"{record['method']} - {baseline}, {record['benchmark']}"
                found[pair] = f"{record['verdict']} {mean:+.1f} [{low:+.1f}, {high:+.1f}]"
    return found


def told_by(here: Path) -> dict[str, str]:
    """The processor and the code of the demo in here, from its last run."""
    run = json.loads((here / "results/train" / RUNS[-1] / "run.json").read_text())
    versions = f"commit {run['git_commit'][:12]}, torch {run['packages']['torch']}"
    return {"made by": f"{versions}, {run['hardware']['cpu']}, {run['hardware']['torch_threads']} threads"}


def write(columns: dict[str, dict[str, str]]) -> None:
    """Write the table of all settings so far."""
    rows = list(next(iter(columns.values())))
    same = sum(len({column[row].split()[0] for column in columns.values()}) == 1 for row in rows[1:])
    lines = [
        "`python docs/tools/demo_settings.py FOLDER`: `gtpo demo` with each ATEN_CPU_CAPABILITY and number of threads.",
        "pass@1, differences in points.",
        "",
        f"**{same} of {len(rows) - 1} verdicts are the same in all {len(columns)} settings.**",
        "",
        "| comparison | " + " | ".join(columns) + " |",
        "|:--|" + ":--|" * len(columns),
        *(f"| {row} | " + " | ".join(column[row] for column in columns.values()) + " |" for row in rows),
    ]
    PAGE.write_text("\n".join(lines) + "\n")
    print(f"{len(columns)} settings in {PAGE}", flush=True)


if __name__ == "__main__":
    main()
