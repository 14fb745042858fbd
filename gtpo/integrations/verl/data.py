"""GSM8K and MATH as the parquet files that verl reads, with the prompt of `gtpo train` and `gtpo eval`.

    python -m gtpo.integrations.verl.data gsm8k --out DIR [--data-dir DIR]

writes DIR/train.parquet and DIR/test.parquet, whose rows are verl's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gtpo.common.errors import explained
from gtpo.common.files import write_parquet
from gtpo.rewards.data.problem import chat_messages
from gtpo.rewards.data.problems import load_source
from gtpo.rewards.golds import find_unverifiable

# Data set -> file -> the source of `gtpo.rewards.data`.
SOURCES = {
    "gsm8k": {"train": "gsm8k_train", "test": "gsm8k_test"},
    "math": {"train": "math_train", "test": "math500"},
    "arithmetic": {"train": "arithmetic_train", "test": "arithmetic_test"},
}


def write_split(data_set: str, split: str, out: Path, data_dir: str | None) -> str:
    """Write one split by write-then-rename and return what was done in a line."""
    import pyarrow

    problems = load_source(SOURCES[data_set][split], data_dir=data_dir)
    unusable = {fault.id for fault in find_unverifiable((problem.id, problem.answer) for problem in problems)}
    usable = [problem for problem in problems if problem.id not in unusable]
    rows = [
        {
            "data_source": f"gtpo/{data_set}",
            "ability": "math",
            "prompt": chat_messages(problem.problem),
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {"split": split, "index": index, "id": problem.id, "problem": problem.problem},
        }
        for index, problem in enumerate(usable)
    ]
    path = out / f"{split}.parquet"
    write_parquet(path, pyarrow.Table.from_pylist(rows))
    left_out = f", {len(unusable)} left out (gold answers that cannot be verified)" if unusable else ""
    return f"{path}: {len(rows):,} problems{left_out}"


def main() -> None:
    """Write both splits of a data set."""
    parser = argparse.ArgumentParser(prog="python -m gtpo.integrations.verl.data", description=__doc__.split("\n")[0])
    parser.add_argument("data_set", choices=sorted(SOURCES))
    parser.add_argument("--out", type=Path, required=True, help="folder for train.parquet and test.parquet")
    parser.add_argument("--data-dir", help="folder with local files (else GTPO_DATA_DIR, else the Hub)")
    options = parser.parse_args()
    with explained():
        for split in SOURCES[options.data_set]:
            print(write_split(options.data_set, split, options.out, options.data_dir))


if __name__ == "__main__":
    main()
