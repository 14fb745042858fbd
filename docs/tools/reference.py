"""Write the reference pages that the code declares: docs/cli.md, docs/config.md, docs/metrics.md, docs/files.md.

`python docs/tools/reference.py` writes them; a test holds them current.
"""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from config_page import as_markdown
from metrics_reference import METRICS
from pydantic import BaseModel
from run_reference import BEST_JSON, COMPLETION_COLUMNS, RUN_JSON, Field

from gtpo import cli
from gtpo.evalkit.results.record import (
    BenchmarkRecord,
    EvalRecord,
    GroupMetrics,
    Interval,
    LabelAgreement,
    ScoringMetrics,
)
from gtpo.evalkit.results.schema import PROBLEM_COLUMNS, PROMPT_COLUMNS, QUESTION_COLUMNS, SAMPLE_COLUMNS, Columns

DOCS = Path(__file__).resolve().parents[1]
HEADER = "<!-- Written by `python docs/tools/reference.py` from {}. Edit that, not this file. -->\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


# -- the command line ------------------------------------------------------------------------------------------------


def default_of(option: Any) -> str:
    """Return an option's default as a word; empty where it is off or its help says more."""
    value = option.default
    if option.is_flag or value is None or callable(value) or not str(value):
        return ""
    return f"`{value}`"


def prose(text: str) -> str:
    """Return a help text with its flags as code."""
    return re.sub(r"(?<![\w`-])--\w[\w.-]*\w", r"`\g<0>`", text)


def command_section(name: str, command: Any) -> str:
    """Return the section of one command."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not getattr(p, "hidden", False)]
    given = " ".join(argument.metavar or argument.name.upper() for argument in arguments)
    text = "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", command.help or ""))
    parts = [
        f"## gtpo {name}\n",
        f"    gtpo {name} {given} [OPTIONS]\n".replace("  [OPTIONS]", " [OPTIONS]"),
        prose(text) + "\n",
    ]
    if arguments:
        named = ((f"`{a.metavar or a.name.upper()}`", prose(a.help or "")) for a in arguments)
        parts.append(table(("argument", "meaning"), named))
    rows = ((", ".join(f"`{flag}`" for flag in o.opts), default_of(o), prose(o.help or "")) for o in options)
    parts.append(table(("option", "default", "meaning"), rows))
    return "\n".join(parts)


def command_line() -> str:
    """Return docs/cli.md."""
    group: Any = typer.main.get_command(cli.app)
    return "\n".join(
        [
            HEADER.format("cli.py"),
            "# Command line\n",
            f"{group.help} `gtpo COMMAND --help` prints the same as below.\n",
            table(
                ("exit code", "meaning"),
                (
                    ("0", "done"),
                    ("1", "a part of the self-test failed (doctor)"),
                    ("2", "a mistake in the command or its input; nothing was changed"),
                    ("3", "incomplete: what was done is kept, the same command, or the one printed, resumes (eval)"),
                    ("4", "the run collapsed and was stopped; its folder says why (train)"),
                    ("130", "interrupted; the same command resumes"),
                ),
            ),
            *(command_section(name, command) for name, command in group.commands.items()),
            "The keys of `gtpo train` are listed in [Config keys](config.md).",
        ]
    )


# -- metrics.jsonl ---------------------------------------------------------------------------------------------------

METRICS_INTRODUCTION = """\
# Metrics of a training run

`metrics.jsonl` has one JSON object per logged step. The names are the same for every method. "Healthy" is a rule of
thumb for a first look, not a measured bound: models and tasks differ. [Watching a run](training.md) says how the
collapse watch uses them. Names in UPPER CASE stand for a name or a number that your config gives.
"""


def metrics() -> str:
    """Return docs/metrics.md."""
    groups: dict[str, list[Any]] = {}
    for metric in METRICS:
        groups.setdefault(metric.name.partition("/")[0] if "/" in metric.name else "The step and its loss", []).append(
            metric
        )
    parts = [HEADER.format("docs/tools/metrics_reference.py"), METRICS_INTRODUCTION]
    for group, members in groups.items():
        parts.append(f"## {group}\n")
        for metric in members:
            parts.append(f"### `{metric.name}`\n\n{metric.meaning}\n")
            rows = (("Unit", metric.unit), ("Healthy", metric.healthy), ("If not", metric.otherwise))
            said = [(name, text) for name, text in (*rows, ("Written by", metric.when)) if text and text != "-"]
            parts.append("\n".join(f"- **{name}:** {text}" for name, text in said) + "\n")
    return "\n".join(parts)


# -- the files of a run ----------------------------------------------------------------------------------------------

FILES_INTRODUCTION = """\
# Files of a run

Every format carries a schema version, and a reader that meets a newer one says so. Files are written whole or not at
all. Metrics have [a page of their own](metrics.md).

| file | of | holds |
|---|---|---|
| `config.yaml` | train run | the resolved [config](config.md): every key with its value |
| `run.json` | train run | what ran, where, and how it ended |
| `metrics.jsonl` | train run | [one line per logged step](metrics.md) |
| `completions/step-N.parquet` | train run | what the model wrote, every `training.log_completions_steps` steps |
| `checkpoints/`, `best/`, `final/` | train run | weights or adapter; `best/best.json` says why it is best |
| `eval.json` | eval run | settings, provenance, all metrics |
| `questions.parquet` | eval run | one row per question and scoring |
| `problems.parquet` | eval run | the questions and golds |
| `samples/*.parquet` | eval run | one row per sample |

Read them with any library:

```python
import json
from pathlib import Path

import pyarrow.parquet as pq

run = Path("results/eval/demo-gtpo")
results = json.loads((run / "eval.json").read_text())
print(results["benchmarks"]["arithmetic"]["pass@k"]["1"])  # {'mean': ..., 'low': ..., 'high': ..., ...}
samples = pq.read_table(run / "samples")
print(samples.column_names)
```
"""


def model_of(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Return the record class that an annotation names, and whether it is a dict of them."""
    for part in (annotation, *typing.get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part, typing.get_origin(annotation) is dict
        if inner := typing.get_args(part):
            found = [(p, True) for p in inner if isinstance(p, type) and issubclass(p, BaseModel)]
            if found:
                return found[0]
    return None, False


def record_rows(record: type[BaseModel], prefix: str = "", leaves: tuple[type, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, meaning) of a record's fields; records in `leaves` have a table of their own."""
    for name, info in record.model_fields.items():
        full = f"{prefix}{info.alias or name}"
        inner, _ = model_of(info.annotation)
        if inner is None or inner in leaves:
            assert info.description, f"{record.__name__}.{name} has no docstring"
            yield f"`{full}`", " ".join(info.description.split())
        else:
            yield from record_rows(inner, f"{full}.", leaves)


def fields(of: Iterable[Field]) -> str:
    """Return the table of declared fields."""
    return table(("name", "meaning"), ((f"`{name}`", meaning) for name, meaning in of))


def columns(of: Columns) -> str:
    """Return the table of Parquet columns."""
    return table(("column", "type", "meaning"), ((f"`{name}`", f"`{kind}`", meaning) for name, kind, meaning in of))


def files() -> str:
    """Return docs/files.md."""
    own = (BenchmarkRecord, Interval, ScoringMetrics, GroupMetrics, LabelAgreement)
    sub = (("Interval", Interval, "in `pass@k` and `maj@k`"), ("Scoring", ScoringMetrics, "`strict` and `lenient`"))
    sub += (("Group", GroupMetrics, "in `by_subject` and `by_level`"), ("Labels", LabelAgreement, "`labels`"))
    parts = [
        HEADER.format("docs/tools/run_reference.py, evalkit/results/record.py and evalkit/results/schema.py"),
        FILES_INTRODUCTION,
        "## run.json\n",
        fields(RUN_JSON),
        "## best.json\n",
        fields(BEST_JSON),
        "## completions/step-N.parquet\n\nOne row per completion.\n",
        fields(COMPLETION_COLUMNS),
        "## eval.json\n\nRates and metrics are fractions in [0, 1].\n",
        table(("name", "meaning"), record_rows(EvalRecord, leaves=own)),
        "### A benchmark: `benchmarks.NAME`\n\nThe metrics at this level are those of the headline scoring.\n",
        table(("name", "meaning"), record_rows(BenchmarkRecord, leaves=own)),
    ]
    for name, record, where in sub:
        parts += [f"### {name}: {where}\n", table(("name", "meaning"), record_rows(record, leaves=own))]
    parts += [
        "## samples/*.parquet\n\nOne row per sample. Each part's metadata `gtpo_run` is eval.json as it was then.\n",
        columns(SAMPLE_COLUMNS),
        "## questions.parquet\n\nOne row per question and scoring.\n",
        columns(QUESTION_COLUMNS),
        "## problems.parquet\n\nOne row per question.\n",
        columns(PROBLEM_COLUMNS),
        "## prompts.parquet\n\nOne row per question, written once.\n",
        columns(PROMPT_COLUMNS),
    ]
    return "\n".join(parts)


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": command_line,
    "config.md": as_markdown,
    "metrics.md": metrics,
    "files.md": files,
}


def main() -> None:
    """Write the pages."""
    for name, content in PAGES.items():
        (DOCS / name).write_text(content().rstrip() + "\n", encoding="utf-8")
        print(f"wrote docs/{name}", file=sys.stderr)


if __name__ == "__main__":
    main()
