"""Judge answers from the shell: `python -m gtpo.rewards FILE`, or `-` for JSON lines on standard input.

Each row of a .jsonl, .csv or .parquet file has `prediction`, or `completion` or a list of `completions` as `gtpo eval`
reads them, `gold` (or `answer`, `ground_truth`) and perhaps `problem`; --fields gives them other names. Prints a row
for each as JSON, or writes it to --out, with its `verdict`, with --explain how both answers were read too, and the
counts on standard error. --against names a reward function with TRL's signature and prints on which completions it
differs from this judge instead. --page serves a page to try the judge, on this machine until Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import html
import io
import json
import secrets
import sys
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from gtpo.common.errors import UserError, explained
from gtpo.common.files import check_writable, read_jsonl, write_parquet, write_text
from gtpo.rewards import Verifier, extract_answer
from gtpo.rewards.adapters import Flip, audit
from gtpo.rewards.completions import completion_text, problem_text
from gtpo.rewards.data.problems import read_rows, renamed
from gtpo.rewards.extract import Scoring, choose_scoring
from gtpo.rewards.loading import import_dotted

PREDICTIONS, GOLDS = ("prediction", "pred", "completion"), ("gold", "answer", "ground_truth")


def main() -> int:
    """Judge the pairs of a file; 5 if the function beside the judge differs too often. Raises UserError."""
    parser = argparse.ArgumentParser(prog="python -m gtpo.rewards", description=__doc__)
    parser.add_argument("file", nargs="?", help="a .jsonl, .csv or .parquet file, or - for lines on standard input")
    parser.add_argument("--page", action="store_true", help="serve a page to try the judge")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a .jsonl, .csv or .parquet file for the judged rows")
    parser.add_argument("--scoring", choices=("auto", "strict", "lenient"), default="auto")
    parser.add_argument("--workers", type=int, help="processes at most; default: the CPUs, at most 16")
    parser.add_argument("--fields", nargs="*", default=[], metavar="NAME=COLUMN", help="gold=target completion=text")
    parser.add_argument("--explain", action="store_true", help="add how both answers were read and the rule")
    parser.add_argument("--against", metavar="MODULE:FUNCTION", help="a reward function to audit")
    parser.add_argument("--fail-above", type=float, default=1.0, metavar="SHARE", help="of differing rows: exit code 5")
    args = parser.parse_args()
    if args.page:
        with Verifier(workers=1) as verifier, contextlib.suppress(KeyboardInterrupt):
            serve(verifier).serve_forever()
        return 0
    if args.file is None:
        raise UserError("python -m gtpo.rewards needs a FILE, or --page")
    names = dict(field.split("=", 1) for field in args.fields if "=" in field)
    if len(names) < len(args.fields):
        raise UserError(f"--fields {' '.join(args.fields)}: expected NAME=COLUMN, as in gold=target")
    if not 0 <= args.fail_above <= 1:
        raise UserError(f"--fail-above must be a share from 0 to 1; found {args.fail_above:g}")
    if args.workers is not None and args.workers < 1:
        raise UserError(f"--workers must be at least 1; found {args.workers}")
    if args.out:
        check_writable("--out", args.out, folder=False)
    stdin = ((f"-:{number}", row) for number, row in read_jsonl(Path("/dev/stdin")))
    read = stdin if args.file == "-" else read_rows(Path(args.file))
    every = [sample for where, row in read for sample in _samples(row, names, where)]
    # A sample that failed is missing: no answer was wrong.
    rows = [row for row in every if row.get("completion", "") is not None]
    raw, golds = ([next(row[name] for name in known if name in row) for row in rows] for known in (PREDICTIONS, GOLDS))
    completions = [str(row["completion"]) for row in rows if "completion" in row]
    # As of `gtpo eval`; answers by themselves are judged strictly.
    auto = choose_scoring(map(extract_answer, completions)) if completions else "strict"
    scoring: Scoring = auto if args.scoring == "auto" else args.scoring
    both = list(zip(rows, raw, strict=True))
    texts = [extract_answer(text, scoring) if "completion" in row else text for row, text in both]
    problems = [row.get("problem") for row in rows]
    if args.against:
        function = import_dotted(args.against, "reward function")
        flips, total = audit(function, list(map(str, raw)), golds, problems, texts, scoring)
        return _told(flips, total, args.fail_above)
    with Verifier(workers=args.workers) as verifier:
        verdicts = verifier.verify_many(list(zip(texts, golds, strict=True)), problems, scoring=scoring)
        for row, text, gold, problem, verdict in zip(rows, texts, golds, problems, verdicts, strict=True):
            row["verdict"] = str(verdict)
            if args.explain:
                row["why"] = verifier.verify(text, gold, problem=problem, explain=True).why
    _write([row if "verdict" in row else row | {"verdict": None} for row in every], args.out)
    counts = Counter(map(str, verdicts)) + Counter(failed=len(every) - len(rows))
    print(*(f"{verdict}: {count}" for verdict, count in counts.most_common()), sep=", ", file=sys.stderr)
    return 0


def _told(flips: list[Flip], total: int, most: float) -> int:
    """Print how a reward function differs from the judge; 5 if by more than `most`."""
    from scipy.stats import binomtest

    low, high = binomtest(len(flips), total).proportion_ci(method="wilson") if total else (0.0, 1.0)
    print(f"{len(flips)} of {total} differ ({100 * low:.2f} to {100 * high:.2f} %)")
    for (direction, verdict), count in Counter((flip.direction, flip.verdict) for flip in flips).most_common():
        print(f"  {count} {direction} by the function, {verdict} here")
    for flip in sorted(flips, key=lambda flip: (flip.direction, flip.second == "CORRECT"))[:20]:
        print(
            f"  {flip.direction}: {flip.text[-200:]!r} | gold {flip.gold!r}: {flip.verdict}, Math-Verify {flip.second}"
        )
    return 5 if total and len(flips) / total > most else 0


def _samples(row: dict[str, Any], names: dict[str, str], where: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each completion of a row, or for its answer. Raises UserError."""
    row = row | renamed(row, names, where)
    name = next((name for name in (*PREDICTIONS, "completions") if name in row), None)
    if name is None or not any(gold in row for gold in GOLDS):
        raise UserError(
            f"{where}: expected {' or '.join(PREDICTIONS)} or completions, and {' or '.join(GOLDS)}; found "
            f"{', '.join(row) or 'nothing'}; name the columns, e.g. --fields completion=text gold=target"
        )
    try:
        if isinstance(row.get("problem"), list | dict):
            row["problem"] = problem_text(row["problem"])
        if not name.startswith("completion"):
            if isinstance(row[name], list | dict):
                raise TypeError(f"a {name} is one answer, not a {type(row[name]).__name__}")
            yield row
            return
        found = row.pop(name)
        several = isinstance(found, list) and not any(isinstance(text, dict) for text in found)
        if several and not found:
            raise TypeError(f"{name} is empty")
        for text in found if several else [found]:
            yield row | {"completion": None if text is None else completion_text(text)}
    except TypeError as error:
        raise UserError(f"{where}: {error}") from None


def _write(rows: list[dict[str, Any]], file: Path | None) -> None:
    """Write judged rows to a file, of the kind that its name ends in, or print them."""
    if file is None or file.suffix not in (".csv", ".parquet"):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_text(file, lines) if file else print(lines, end="", flush=True)
    elif file.suffix == ".csv":
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, dict.fromkeys(name for row in rows for name in row))
        table.writeheader()
        table.writerows(rows)
        write_text(file, text.getvalue())
    else:
        import pyarrow as pa

        try:
            write_parquet(file, pa.Table.from_pylist(rows))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UserError(f"--out {file}: a column holds several types ({error}); write a .jsonl file") from None


# -- the page ---------------------------------------------------------------------------------------------------------
FIELDS = (("problem", "Problem (may be empty)"), ("gold", "Gold"), ("answer", "Answer, or a whole completion"))
LARGEST = 200_000
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>gtpo judge</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; form-action 'self'">
<style>body {{ font: 16px system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem }}
textarea {{ width: 100%; box-sizing: border-box; font: inherit }} code {{ overflow-wrap: anywhere }}</style>
<h1>gtpo judge</h1><form method="post">{fields}<p><button>Judge</button></p></form>{result}</html>"""


def rendered(values: dict[str, str], result: str = "") -> bytes:
    """Return the page with what was typed; every text is shown as text."""
    fields = "".join(
        f'<p><label>{label}<br><textarea name="{name}" rows="3">{html.escape(values.get(name, ""))}</textarea></label>'
        for name, label in FIELDS
    )
    return PAGE.format(fields=fields, result=result).encode()


def judged(verifier: Verifier, values: dict[str, str]) -> str:
    """Return the verdict, how both answers were read and the rule that decided, as HTML."""
    text, problem = values.get("answer", ""), values.get("problem") or None
    found = extract_answer(text, "lenient") if len(text) > 200 or "\\boxed" in text or "<answer>" in text else text
    verdict, why = verifier.verify(found, values.get("gold", ""), problem=problem, explain=True)
    read = "" if found == text else f"<p>The answer in it: <code>{html.escape(str(found))}</code></p>"
    return f"<h2>{html.escape(str(verdict))}</h2>{read}<p><code>{html.escape(why)}</code></p>"


def serve(verifier: Verifier, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of the page on 127.0.0.1, whose address begins with a random token; the caller runs it."""
    path = f"/{secrets.token_urlsafe(16)}/"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(rendered({}))

        def do_POST(self) -> None:
            size = min(int(self.headers.get("Content-Length") or 0), LARGEST)
            typed = {name: words[0].strip() for name, words in parse_qs(self.rfile.read(size).decode()).items()}
            self._answer(rendered(typed, judged(verifier, typed)) if self.path == path else b"")

        def _answer(self, body: bytes) -> None:
            self.send_response(200 if self.path == path else 403)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body if self.path == path else b"Open the address that was printed.")

        def log_message(self, *args: object) -> None:
            """Print no line for a request."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"http://127.0.0.1:{server.server_port}{path}   Ctrl-C ends it", flush=True)
    return server


if __name__ == "__main__":
    with explained():
        sys.exit(main())
