"""What the demo concludes on other processors: `python docs/tools/demo_settings.py FOLDER`, hours, resumable.

Runs `gtpo demo` in FOLDER/SETTING for three instruction sets and one and two threads. With --made NAME it runs nothing:
FOLDER is where `gtpo demo` was run, and NAME its column. The verdicts go to results/published/demo/settings.json and,
side by side with those that are there, to settings.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

from gtpo.common.files import read_json, write_json, write_text
from gtpo.demo import AGAINST_GRPO, RUNS

PUBLISHED = Path(__file__).resolve().parents[2] / "results/published/demo"
INSTRUCTIONS = ("default", "avx2", "avx512")
"""Values of ATEN_CPU_CAPABILITY; default is plain code without AVX."""

THREADS = (1, 2)
GTPO = (sys.executable, "-m", "gtpo")


def main() -> None:
    """Run what is missing, then write the page of the settings that are complete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--made", metavar="NAME", help="the column of a demo that was made in the folder")
    asked = parser.parse_args()
    if asked.made:
        add(asked.made, asked.folder)
        return
    for threads, instructions in product(THREADS, INSTRUCTIONS):
        here = asked.folder / f"{instructions}-{threads}"
        here.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": instructions, "OMP_NUM_THREADS": str(threads)}
        subprocess.run([*GTPO, "demo"], cwd=here, env=environment, stdout=subprocess.DEVNULL, check=True)
        add(f"{instructions}, {threads} thread{'s' * (threads > 1)}", here)


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


def add(name: str, here: Path) -> None:
    """Put the verdicts of the demo in here beside those of the other settings, and write the table of all."""
    columns = read_json(PUBLISHED / "settings.json") | {name: {**told_by(here), **verdicts(here)}}
    write_json(PUBLISHED / "settings.json", columns)
    write_text(PUBLISHED / "settings.md", page(columns))
    print(f"{len(columns)} settings in {PUBLISHED / 'settings.md'}", flush=True)


def page(columns: dict[str, dict[str, str]]) -> str:
    """Return the table of all settings, under the number of verdicts that are the same in all."""
    rows = list(next(iter(columns.values())))
    same = sum(len({column[row].split()[0] for column in columns.values()}) == 1 for row in rows[1:])
    lines = [
        "`gtpo demo` with several ATEN_CPU_CAPABILITY and numbers of threads, and as it comes on another processor",
        "(`python docs/tools/demo_settings.py`). pass@1, differences in points.",
        "",
        f"**{same} of {len(rows) - 1} verdicts are the same in all {len(columns)} settings.**",
        "",
        "| comparison | " + " | ".join(columns) + " |",
        "|:--|" + ":--|" * len(columns),
        *(f"| {row} | " + " | ".join(column[row] for column in columns.values()) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
