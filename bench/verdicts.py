"""Every verdict on the recorded completions and grader cases, and what changed between two versions of the rules.

    python -m bench.verdicts --out before.jsonl.gz
    python -m bench.verdicts --out after.jsonl.gz --against before.jsonl.gz

The second call prints each verdict that is another than before, with the owner's label where there is one, so that a
person can judge it. Strict and lenient scoring are both applied to the leniently extracted answer: recorded completions
have no answer tags.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gtpo.common.files import read_jsonl
from gtpo.rewards import Verifier, extract_answer


class Case(NamedTuple):
    """One answer with its gold; `label` is the owner's verdict, None where there is none."""

    key: str
    prediction: str | None
    gold: str
    problem: str | None
    label: bool | None


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    return (row for _, row in read_jsonl(path))


def grader_cases(shared: Path) -> Iterator[Case]:
    """Yield the cases of other projects' grader tests."""
    for path in sorted((shared / "grader_cases").glob("*.jsonl")):
        for index, row in enumerate(_rows(path)):
            yield Case(
                f"{path.stem}/{index}", extract_answer(row["pred"], "lenient"), row["gold"], None, row["expected"]
            )


def recorded(shared: Path) -> Iterator[Case]:
    """Yield the recorded completions of GSM8K and MATH, and ZeroEval's GSM8K answers, with their problems."""
    gsm8k = {row["id"]: row["problem"] for row in _rows(shared / "data/gsm8k_test.jsonl")}
    for path in sorted((shared / "recorded/gsm8k_openai_gpt3").glob("*.jsonl.gz")):
        for index, row in enumerate(_rows(path)):
            answer = extract_answer(row["completion"], "lenient")
            yield Case(f"{path.name}/{index}", answer, row["gold"], gsm8k[row["id"]], str(row["label"]) == "True")
    for row in _rows(shared / "recorded/math100x8_qwen/math_cot_100.jsonl.gz"):
        for index, (text, label) in enumerate(zip(row["completions"], row["labels"], strict=True)):
            answer = extract_answer(text, "lenient")
            yield Case(f"math100x8/{row['id']}/{index}", answer, row["gold"], row["problem"], label)
    golds = [row["gold"].lstrip("# ") for row in _rows(shared / "recorded/zeroeval_gsm_problems.jsonl")]
    ids = [row["id"] for row in _rows(shared / "recorded/zeroeval_gsm_problems.jsonl")]
    for row in _rows(shared / "recorded/zeroeval_gsm_labels.jsonl.gz"):
        for index, (answer, label) in enumerate(zip(row["answers"], row["labels"], strict=True)):
            text = None if answer is None else str(answer)
            yield Case(f"zeroeval/{row['model']}/{index}", text, golds[index], gsm8k[ids[index]], label == "1")


def verdicts(cases: list[Case], verifier: Verifier) -> list[dict[str, Any]]:
    """Return one row a case: what was compared, and the verdict under each scoring."""
    pairs = [(case.prediction, case.gold) for case in cases]
    problems = [case.problem for case in cases]
    strict = verifier.verify_many(pairs, problems, scoring="strict")
    lenient = verifier.verify_many(pairs, problems, scoring="lenient")
    return [
        {**case._asdict(), "strict": str(s), "lenient": str(x)}
        for case, s, x in zip(cases, strict, lenient, strict=True)
    ]


def changes(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of `after` whose verdict was another, with the old ones as strict_before and lenient_before."""
    old = {row["key"]: row for row in before}
    return [
        {**row, "strict_before": old[row["key"]]["strict"], "lenient_before": old[row["key"]]["lenient"]}
        for row in after
        if any(row[scoring] != old[row["key"]][scoring] for scoring in ("strict", "lenient"))
    ]


def main() -> None:
    """Write the verdicts of this version; print how they differ from an earlier file's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path(os.environ.get("GTPO_SHARED_DIR", "../shared")))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--against", type=Path)
    args = parser.parse_args()
    if not (args.shared / "recorded").is_dir():
        parser.exit(2, f"bench.verdicts: {args.shared}/recorded: no such folder; name it by --shared\n")
    with Verifier() as verifier:
        rows = verdicts([*grader_cases(args.shared), *recorded(args.shared)], verifier)
    with gzip.open(args.out, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    for scoring in ("strict", "lenient"):
        agree = sum((row[scoring] == "CORRECT") == row["label"] for row in rows)
        print(f"{scoring}: {agree} of {len(rows)} labels agree; {dict(Counter(row[scoring] for row in rows))}")
    if args.against is None:
        return
    changed = changes(list(_rows(args.against)), rows)
    print(f"{len(changed)} cases have another verdict")
    distinct: dict[tuple[Any, ...], list[str]] = {}
    for row in changed:
        moves = tuple(f"{s}: {row[s + '_before']} -> {row[s]}" for s in ("strict", "lenient"))
        distinct.setdefault((row["prediction"], row["gold"], row["label"], *moves), []).append(row["key"])
    for (prediction, gold, label, strict, lenient), keys in distinct.items():
        print(f"  {prediction!r} | {gold!r}  {strict}; {lenient}; label {label}; {len(keys)}x, first {keys[0]}")


if __name__ == "__main__":
    main()
