"""Every verdict on the recorded completions and grader cases, and what changed between two versions of the rules.

    python -m bench.verdicts --out before.jsonl.gz
    python -m bench.verdicts --out after.jsonl.gz --against before.jsonl.gz

The second call prints each verdict that is another than before, with the owner's label where there is one, so that a
person can judge it. Strict and lenient scoring are both applied to the leniently extracted answer: recorded completions
have no answer tags.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.common import parser, rows_of, with_shared
from gtpo.rewards import Verifier, extract_answer

SCORINGS = ("strict", "lenient")


class Case(NamedTuple):
    """A completion, or an answer, with its gold; `label` is the owner's verdict, None where there is none."""

    suite: str
    key: str
    text: str | None
    gold: str
    problem: str | None
    label: bool | None
    bare: bool = False  # Whether the text is the answer itself, extracted by its owner

    @property
    def prediction(self) -> str | None:
        """What is judged."""
        return self.text if self.bare or self.text is None else extract_answer(self.text, "lenient")


def labelled(shared: Path) -> Iterator[Case]:
    """Yield the cases of other projects' grader tests and the recorded completions of GSM8K and MATH."""
    for path in sorted((shared / "grader_cases").glob("*.jsonl")):
        for i, row in enumerate(rows_of(path)):
            text, suite, bare = row["pred"], f"{path.stem} cases", "problem" in row
            if row.get("mode") in SCORINGS:  # a completion, to be judged under this scoring
                text = extract_answer(text, row["mode"])
            yield Case(suite, f"{path.stem}/{i}", text, row["gold"], row.get("problem"), row["expected"], bare)
    recorded = shared / "recorded"
    gsm8k = {row["id"]: row["problem"] for row in rows_of(shared / "data/gsm8k_test.jsonl")}
    for path in sorted((recorded / "gsm8k_openai_gpt3").glob("*.jsonl.gz")):
        for i, row in enumerate(rows_of(path)):
            label = str(row["label"]) == "True"
            yield Case("gsm8k 4x1319", f"{path.name}/{i}", row["completion"], row["gold"], gsm8k[row["id"]], label)
    for row in rows_of(recorded / "math100x8_qwen/math_cot_100.jsonl.gz"):
        for i, (text, label) in enumerate(zip(row["completions"], row["labels"], strict=True)):
            yield Case("math100x8", f"math100x8/{row['id']}/{i}", text, row["gold"], row["problem"], label)
    asked = rows_of(recorded / "zeroeval_gsm_problems.jsonl")
    for row in rows_of(recorded / "zeroeval_gsm_labels.jsonl.gz"):
        for i, (its, answer, label) in enumerate(zip(asked, row["answers"], row["labels"], strict=True)):
            text, gold = None if answer is None else str(answer), its["gold"].lstrip("# ")
            yield Case("zeroeval", f"zeroeval/{row['model']}/{i}", text, gold, gsm8k[its["id"]], label == "1", True)


def main() -> None:
    """Write the verdicts of this version; print how they differ from an earlier file's."""
    made = parser(__doc__, against=Path)
    made.add_argument("--out", type=Path, required=True)
    args = with_shared(made, "recorded")
    cases = list(labelled(args.shared))
    pairs, problems = [(case.prediction, case.gold) for case in cases], [case.problem for case in cases]
    with Verifier() as verifier:
        found = [verifier.verify_many(pairs, problems, scoring=scoring) for scoring in SCORINGS]
    rows: list[dict[str, Any]] = [
        {"key": case.key, "prediction": text, "gold": gold, "problem": case.problem, "label": case.label,
         "strict": str(strict), "lenient": str(lenient)}
        for case, (text, gold), strict, lenient in zip(cases, pairs, *found, strict=True)
    ]  # fmt: skip
    with (gzip.open if args.out.suffix == ".gz" else open)(args.out, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    for scoring in SCORINGS:
        agree = sum((row[scoring] == "CORRECT") == row["label"] for row in rows)
        print(f"{scoring}: {agree} of {len(rows)} labels agree; {dict(Counter(row[scoring] for row in rows))}")
    if args.against is None:
        return
    old = {row["key"]: row for row in rows_of(args.against)}
    changed = [row for row in rows if any(row[scoring] != old[row["key"]][scoring] for scoring in SCORINGS)]
    print(f"{len(changed)} cases have another verdict")
    distinct: dict[tuple[Any, ...], list[str]] = {}
    for row in changed:
        moves = "; ".join(f"{s}: {old[row['key']][s]} -> {row[s]}" for s in SCORINGS)
        distinct.setdefault((row["prediction"], row["gold"], moves, row["label"]), []).append(row["key"])
    for (prediction, gold, moves, label), keys in distinct.items():
        print(f"  {prediction!r} | {gold!r}  {moves}; label {label}; {len(keys)}x, first {keys[0]}")


if __name__ == "__main__":
    main()
