"""Write the pages that the code declares: the reference in docs/, results/*.md, configs/published/README.md.

`python docs/tools/reference.py` writes them; a test holds them current.
"""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml
from pydantic import BaseModel

from gtpo import cli
from gtpo.common.settings import CommandSettings
from gtpo.config.load import RENAMED, REWARDS, TRAINERS, WITHOUT_EFFECT
from gtpo.config.schema import SHORTCUTS, by_section, default_in_words
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.report.command import CompareSettings, PlanSettings
from gtpo.options import TrainOptions
from gtpo.runs.eval_folder import PROBLEM_COLUMNS, PROMPT_COLUMNS, QUESTION_COLUMNS, SAMPLE_COLUMNS, Columns
from gtpo.runs.eval_record import (
    BenchmarkRecord,
    EvalRecord,
    Interval,
    LabelAgreement,
    ScoringMetrics,
)

ROOT = Path(__file__).resolve().parents[2]
RUN_REFERENCE: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("run_reference.yaml").read_text())
"""What the files of a train run hold."""
HEADER = "<!-- Written by `python docs/tools/reference.py` from {}. Edit that, not this file. -->\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


# -- the command line ------------------------------------------------------------------------------------------------


def default_of(value: Any) -> str:
    """Return an option's default as a word; empty where it is off or its help says more."""
    off = value is None or value is False or callable(value) or not str(value)
    return "" if off else f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def prose(text: str) -> str:
    """Return a help text with its flags as code."""
    return re.sub(r"(`[^`]*`)|(?<![\w-])--\w[\w.-]*\w", lambda match: match[1] or f"`{match[0]}`", text)


# What is declared as a model; Typer knows the rest.
DECLARED: dict[str, type[CommandSettings]] = {
    "train": TrainOptions, "eval": EvalSettings, "compare": CompareSettings, "plan": PlanSettings,
}  # fmt: skip


def command_section(name: str, command: Any) -> str:
    """Return the section of one command."""
    if settings := DECLARED.get(name):
        keys = settings.keys()
        argument = keys.pop(settings.ARGUMENT)
        arguments = [(argument.name.upper() + "..." * argument.repeatable, argument.doc)]
        options = [(key.flags, key.default, key.doc + choices(key.choices)) for key in keys.values()]
    else:
        visible = [param for param in command.params if not getattr(param, "hidden", False)]
        named = [param for param in visible if param.param_type_name == "argument"]
        arguments = [(param.metavar or param.name.upper(), param.help or "") for param in named]
        options = [(tuple(p.opts), False if p.is_flag else p.default, p.help or "") for p in visible if p not in named]
    text = "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", command.help or ""))
    parts = [
        f"## gtpo {name}\n",
        " ".join([f"    gtpo {name}", *(word for word, _ in arguments), "[OPTIONS]\n"]),
        prose(text) + "\n",
    ]
    if arguments:
        parts.append(table(("argument", "meaning"), ((f"`{word}`", prose(meaning)) for word, meaning in arguments)))
    rows = ((", ".join(f"`{flag}`" for flag in flags), default_of(value), prose(doc)) for flags, value, doc in options)
    parts.append(table(("option", "default", "meaning"), rows))
    return "\n".join(parts)


def choices(words: Sequence[str]) -> str:
    """Return the values that an option may have, as a sentence."""
    return f" One of {', '.join(words)}." if words else ""


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
                    ("1", "the loss is wrong on this machine (doctor)"),
                    ("2", "a mistake in the command or its input, or a failure that is explained"),
                    ("3", "incomplete: what was done is kept, the same command, or the one printed, resumes (eval)"),
                    ("4", "the run collapsed and was stopped; its folder says why (train)"),
                    ("5", "a method is shown to be worse than the baseline (compare --fail-if-worse)"),
                    ("6", "neither that nor that it loses fewer than POINTS is shown (compare --fail-if-worse)"),
                    ("130", "interrupted; the same command resumes"),
                ),
            ),
            *(command_section(name, command) for name, command in group.commands.items()),
            "The keys of `gtpo train` are listed in [Config keys](config.md).",
        ]
    )


# -- the config ------------------------------------------------------------------------------------------------------

CONFIG_INTRODUCTION = """\
<!-- Written by `python docs/tools/reference.py` from gtpo/config/schema.py. Edit the schema, not this file. -->

# The config of a training run

`gtpo train CONFIG [flags]`, CONFIG being a YAML file or the name of one that comes with gtpo, such as
`paper/llama-math-gtpo-g8` (`gtpo configs` lists them). Every key below is also a flag, `--section.key value`; a list
takes several words, and a flag wins over the file. `gtpo train --help-config` prints this list with all that is to be
said of a key, `--dry-run` prints what a run resolves to. The authors' own files run unchanged
([what their keys become](../configs/published/README.md)).

A file may extend others: `extends: base.yaml`, or a list: files relative to the extending one, or names as above.
Sections merge key by key, lists are replaced, and `section: null` clears the base's section. Unknown keys and values
out of range, then contradictions, are errors, exit code 2, each with its file and its line.

The sections `training`, `lora` and `rollout` also take the fields of TRL, of peft and of the sampler, by their names.
They are checked when TRL has been imported, before any weights are loaded. What a run decides itself is refused with
the reason.
"""


PUBLISHED = """\
# The authors' config files

The authors' own files and flags run unchanged, and TRL's names of keys of gtpo are taken. Each mapping below is named
in one line on stderr, and so is each key that has no effect. None of these keys remains in the run's config.yaml. The
files train with the paper's objective; `--objective.preset gtpo-published --trainer.reward_funcs
gtpo.rewards.published_final_reward --training.temperature 0.9` computes what the authors' code computed
([Paper and code](../../results/published/paper_vs_code.md)).
"""


def first_sentence(text: str) -> str:
    """Return what a key is, without what --help-config adds."""
    return re.split(r"(?<=[.:;]) (?=[A-Z`])", text, maxsplit=1)[0].rstrip(":;")


def config() -> str:
    """Return docs/config.md."""
    parts = [CONFIG_INTRODUCTION]
    for name, doc, own in by_section():
        if name == "model.build":  # models of the tests and the demo
            continue
        rows = ((f"`{key.name}`", key.expects, default_in_words(key), first_sentence(key.doc)) for key in own)
        parts.append(f"## {f'`{name}`' if name else 'Top level'}\n\n{doc}\n")
        if own:
            parts.append(table(("key", "takes", "default", ""), rows))
    parts.append("## Short flags\n")
    parts.append(table(("flag", "sets"), ((f"`--{flag}`", f"`{key}`") for flag, key in SHORTCUTS.items())))
    return "\n".join(parts)


def published_config() -> str:
    """Return configs/published/README.md."""
    rows = [
        (f"`trainer.class_path: {path}`", f"`method: {method}`") for path, (method, line) in TRAINERS.items() if line
    ]
    rows += [(f"`trainer.reward_funcs: {path}`", f"`{ours}` ({why})") for path, (ours, why) in REWARDS.items()]
    rows += [(f"`{key}`", f"`{ours}`") for key, ours in RENAMED.items()]
    rows += [(f"`{key}`", f"no effect: {why}") for key, why in WITHOUT_EFFECT.items()]
    rows += RUN_REFERENCE["published config"].items()
    head = HEADER.format("gtpo/config/published.toml and docs/tools/run_reference.yaml")
    return "\n".join([head, PUBLISHED, table(("in the published file", "here"), rows)])


# -- metrics.jsonl ---------------------------------------------------------------------------------------------------

METRICS_INTRODUCTION = """\
# Metrics of a training run

`metrics.jsonl` has one JSON object per logged step. The names are the same for every method. "Healthy" is a rule of
thumb for a first look, not a measured bound: models and tasks differ. [Watching a run](../docs/watch.md) says how the
collapse watch uses them. Names in UPPER CASE stand for a name or a number that your config gives.
"""


def metrics() -> str:
    """Return results/METRICS.md."""
    groups: dict[str, list[str]] = {}
    for name in RUN_REFERENCE["metrics"]:
        groups.setdefault(name.partition("/")[0] if "/" in name else "The step and its loss", []).append(name)
    parts = [HEADER.format("docs/tools/run_reference.yaml"), METRICS_INTRODUCTION]
    labels = {"unit": "Unit", "healthy": "Healthy", "otherwise": "If not", "when": "Written by"}
    for group, names in groups.items():
        parts.append(f"## {group}\n")
        for name in names:
            metric = RUN_REFERENCE["metrics"][name]
            parts.append(f"### `{name}`\n\n{metric['meaning']}\n")
            said = [(label, metric[key]) for key, label in labels.items() if metric.get(key, "-") != "-"]
            parts.append("\n".join(f"- **{label}:** {text}" for label, text in said) + "\n")
    return "\n".join(parts)


# -- the files of a run ----------------------------------------------------------------------------------------------

FILES_INTRODUCTION = """\
# Files of a run

run.json, eval.json and Parquet files carry a schema version, and a reader that meets a newer one says so. All but
metrics.jsonl and server.log are written whole or not at
all. Metrics have [a page of their own](METRICS.md).

| file | of | holds |
|---|---|---|
| `config.yaml` | train run | the resolved [config](../docs/config.md): every key with its value |
| `run.json` | train run | what ran, where, and how it ended |
| `metrics.jsonl` | train run | [one line per logged step](METRICS.md) |
| `problems.txt` | train run | a hash of the text of each problem that is trained on |
| `completions/step-N.parquet` | train run | what the model wrote, every `training.log_completions_steps` steps |
| `checkpoints/`, `best/`, `final/` | train run | weights or adapter; `best/best.json` says why it is best |
| `gtpo_run.json` | checkpoint | the run's id and where its folder is: a script's checkpoints lead to their run |
| `eval.json` | eval run | settings, provenance, all metrics |
| `questions.parquet` | eval run | one row per question and scoring |
| `problems.parquet` | eval run | the questions and golds |
| `samples/*.parquet` | eval run | one row per sample |
| `server.log` | eval run | what the server of `--serve` printed |

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


def fields(part: str) -> str:
    """Return the table of the fields that RUN_REFERENCE declares."""
    return table(("name", "meaning"), ((f"`{name}`", meaning) for name, meaning in RUN_REFERENCE[part].items()))


def columns(of: Columns) -> str:
    """Return the table of Parquet columns."""
    return table(("column", "type", "meaning"), ((f"`{name}`", f"`{kind}`", meaning) for name, kind, meaning in of))


def files() -> str:
    """Return results/FILES.md."""
    own = (BenchmarkRecord, Interval, ScoringMetrics, LabelAgreement)
    sub = (("Interval", Interval, "in `pass@k` and `maj@k`"), ("Scoring", ScoringMetrics, "`strict` and `lenient`"))
    sub += (("Labels", LabelAgreement, "`labels`"),)
    parts = [
        HEADER.format("docs/tools/run_reference.yaml, gtpo/runs/eval_record.py and gtpo/runs/eval_folder.py"),
        FILES_INTRODUCTION,
        "## run.json\n",
        fields("run.json"),
        "## best.json\n",
        fields("best.json"),
        "## completions/step-N.parquet\n\nOne row per completion.\n",
        fields("completions"),
        "## eval.json\n\nRates and metrics are fractions in [0, 1].\n",
        table(("name", "meaning"), record_rows(EvalRecord, leaves=own)),
        "### A benchmark: `benchmarks.NAME`\n\nThe metrics at this level are those of the headline scoring.\n",
        table(("name", "meaning"), record_rows(BenchmarkRecord, leaves=own)),
    ]
    for name, record, where in sub:
        parts += [f"### {name}: {where}\n", table(("name", "meaning"), record_rows(record, leaves=own))]
    parts += [
        "## samples/*.parquet\n\nOne row per sample. Each part's metadata `gtpo_run` is eval.json as it was then, "
        "without metrics.\n",
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
    "docs/cli.md": command_line,
    "docs/config.md": config,
    "results/METRICS.md": metrics,
    "results/FILES.md": files,
    "configs/published/README.md": published_config,
}


def main() -> None:
    """Write the pages."""
    for name, content in PAGES.items():
        (ROOT / name).write_text(content().rstrip() + "\n", encoding="utf-8")
        print(f"wrote {name}", file=sys.stderr)


if __name__ == "__main__":
    main()
