"""Whether runs may be compared: settings that must agree, and settings whose differences are named.

Runs that differ in what is measured (SETTINGS) are refused, or compared with a note if
that was asked for. Everything else that eval.json says of how samples came about, engine, dtype, quantisation, adapter,
versions, hardware, is compared key by key: what differs is named, nothing differs in silence.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.files import flatten
from gtpo.evalkit.engines.model_ref import fingerprint
from gtpo.runs.eval_record import EvalRecord
from gtpo.runs.find import EvalRun
from gtpo.runs.prompt import DERIVED
from gtpo.runs.train_run import RESULTS

# What two runs must share to be comparable: name for a reader -> key in eval.json. `n` belongs to a benchmark.
SETTINGS = {
    "scoring": "scoring", "temperature": "sampling.temperature", "top_p": "sampling.top_p", "top_k": "sampling.top_k",
    "min_p": "sampling.min_p", "presence_penalty": "sampling.presence_penalty",
    "repetition_penalty": "sampling.repetition_penalty", "max_tokens": "sampling.max_tokens", "stop": "sampling.stop",
    "prompt": "prompt.system", "user template": "prompt.user", "few-shot examples": "prompt.fewshot",
    "api": "prompt.api", "chat template": "prompt.chat_template_hash",
    "chat template kwargs": "prompt.chat_template_kwargs", "verifier": "verifier.version",
}  # fmt: skip

# Values at which a sampling parameter changes nothing.
OFF = {"top_p": 1, "top_k": 0, "min_p": 0, "presence_penalty": 0, "repetition_penalty": 1}
# Keys of eval.json that identify a run, count its work, or are compared elsewhere.
NOT_SETTINGS = (
    *SETTINGS.values(), "schema_version", "status", "name", "created", "wall_seconds", "command", "benchmarks",
    "model.source", "model.fingerprint", "model.weights", "model.tokenizer", "model.generation_config",
    "model.train_run", "model.checkpoint", "model.method", "model.preset", "sampling.n", "scoring_by",
    *(f"prompt.{name}" for name in DERIVED if name != "time"),
)  # fmt: skip


def settings(run: EvalRun) -> dict[str, Any]:
    """Return SETTINGS by name: the prompt's hash if its text is unknown."""
    record = run.record
    found = {name: attrgetter(key)(record) for name, key in SETTINGS.items()}
    if record.prompt.system is None:
        found["prompt"] = record.prompt.hash
    # Up to rules version 15 Math-Verify could judge in place of our verifier.
    if theirs := (record.verifier.model_extra or {}).get("math_verify"):
        found["verifier"] = f"Math-Verify {theirs}"
    return found


def by_run(values: Mapping[str, Any]) -> str:
    """`a: 0.7; b, c: 1.0`: runs by value."""
    names: dict[str, list[str]] = {}
    for run, value in values.items():
        text = _text(value)
        names.setdefault(text if len(text) <= 60 else f"{text[:57]}...", []).append(run)
    return "; ".join(f"{', '.join(runs)}: {value}" for value, runs in names.items())


def common_scoring(runs: list[EvalRun], asked: str | None, notes: list[str]) -> str:
    """The one scoring that all runs are compared under: as asked, else their headline.

    If completions chose different ones, it is the lenient one. UserError if flags or protocols did.
    """
    headlines = {run.name: run.record.scoring for run in runs}
    if asked:
        return asked
    if len(set(headlines.values())) > 1:
        if any(run.record.scoring_by != "completions" for run in runs):
            raise UserError(f"scoring differs ({by_run(headlines)}); pass --scoring strict or --scoring lenient")
        notes.append(f"the headlines differ ({by_run(headlines)}); all runs are read by lenient scoring")
        return "lenient"
    return next(iter(headlines.values()), "strict")  # no eval run: only training is shown


def check_settings(runs: list[EvalRun], scoring: str, allow: bool, notes: list[str]) -> dict[str, Any]:
    """Refuse (or, allowed, note) what must agree and does not; note what else differs; return what the runs share."""
    found = {run.name: settings(run) | {"scoring": scoring} for run in runs}
    by_key = {key: {name: of[key] for name, of in found.items()} for key in SETTINGS}
    names = dict.fromkeys(name for run in runs for name in run.benchmarks)
    counts = {name: {run.name: run.entry(name).n for run in runs if name in run.benchmarks} for name in names}
    by_key |= {f"n of {name}": values for name, values in counts.items()}
    differing = {key: of for key, of in by_key.items() if len(set(map(str, of.values()))) > 1}
    shared = {key: next(iter(by_key[key].values()), None) for key in SETTINGS if key not in differing}
    if counts and not any(key.startswith("n of ") for key in differing):
        shared["n"] = by_run({name: next(iter(values.values())) for name, values in counts.items()})
    rates = [entry.truncation_rate for run in runs for entry in run.record.benchmarks.values()]
    if "max_tokens" in differing and all(rate == 0 for rate in rates):  # None: not known
        notes.append(f"max_tokens differs ({by_run(differing.pop('max_tokens'))}), but no completion reached it")
    for key in [key for key, values in differing.items() if _is_off(key, values, runs)]:
        notes.append(f"{key} differs ({by_run(differing.pop(key))}), but a server that does not take it leaves it off")
    problems = [f"{key} differs ({by_run(values)})" for key, values in differing.items()]
    if problems and not allow:
        raise UserError(
            f"these runs cannot be compared: {'; and '.join(problems)}. --allow-mismatch compares them anyway, "
            f"with a note{_mending_command(runs, problems)}"
        )
    notes += [f"not like for like: {problem}" for problem in problems]
    kinds = {run.name: run.record.model.checkpoint for run in runs if run.record.model.checkpoint is not None}
    if len(set(kinds.values())) > 1:
        notes.append(f"the checkpoints differ ({by_run(kinds)}): best/ is chosen by accuracy, others are not")
    notes += [note for run in runs for note in _changed_weights(run)]
    if others := _other_differences(runs):
        notes.append("also different, which can move samples: " + "; and ".join(others))
    return shared


def _is_off(key: str, values: Mapping[str, Any], runs: list[EvalRun]) -> bool:
    """Return whether a parameter is off where it was sent, and not sent to servers that do not take it."""
    left_out = [run.name for run in runs if key in run.record.engine.parameters_left_out]
    return key in OFF and all(value is None if run in left_out else value == OFF[key] for run, value in values.items())


def _mending_command(runs: list[EvalRun], problems: list[str]) -> str:
    """Return the commands that score the runs again, or else evaluate the last run as the first.

    Nothing for completions that were recorded, and by one judge.
    """
    if all(problem.startswith("verifier ") for problem in problems):
        return f". To mend it: {' && '.join(f'gtpo eval {shlex.quote(str(run.folder))} --rescore' for run in runs)}"
    first, last = runs[0], runs[-1]
    if last.record.engine.name == "recorded":  # nobody can sample them again
        return ""
    engine, model = last.record.engine, last.record.model.train_run or last.record.model.source
    urls = (engine.model_extra or {}).get("base_urls", []) if engine.serve is None else []
    server = [f"--serve {shlex.quote(engine.serve)}"] if engine.serve else [f"--base-url {url}" for url in urls]
    # A run elsewhere, or under another name in this comparison, is known to gtpo eval by its folder only.
    like = first.name if first.folder == RESULTS / "eval" / first.name else str(first.folder)
    out = shlex.quote(str(RESULTS / "eval" / f"{last.name}-like-{first.name}"))
    words = " ".join([shlex.quote(str(model)), *server, f"--like {shlex.quote(like)}"])
    return f". To mend it: gtpo eval {words} --out {out}"


def _other_differences(runs: list[EvalRun]) -> list[str]:
    """`engine.versions.vllm (a: 0.30; b: 0.31)` for every other key of eval.json."""
    flat = {run.name: _other_settings(run.record) for run in runs}
    found = {key: {run: _text(own.get(key)) for run, own in flat.items()} for keys in flat.values() for key in keys}
    return [f"{key} ({by_run(values)})" for key, values in found.items() if len(set(values.values())) > 1]


def _other_settings(record: EvalRecord) -> dict[str, Any]:
    skipped = {*NOT_SETTINGS, "engine.canaries", "engine.base_urls"}  # these differ between any two models
    keys = flatten(record.as_json())
    above = {key: {key, key.split(".")[0], ".".join(key.split(".")[:2])} for key in keys}
    kept = {key: value for key, value in keys.items() if not skipped & above[key]}
    return kept | {"adapter": "yes" if kept.pop("model.adapter", None) else "no"}


def _changed_weights(run: EvalRun) -> Iterator[str]:
    """Say whether the train run behind a run holds other weights now than those evaluated; it may hold none."""
    kind, before = run.record.model.checkpoint, (run.record.model.fingerprint or "").rpartition("-")[2]
    with suppress(UserError):
        there = run.train.weights(kind) if run.train is not None and kind and before else None
        if run.train and there and any(there.glob("*.safetensors")) and fingerprint(there) != before:
            yield (
                f"{run.name}: the weights in {there} have changed since they were evaluated: these are the figures of "
                f"the old ones. gtpo eval {run.train.root} --checkpoint {kind} --out NEW measures the new"
            )


def _text(value: Any) -> str:
    return "unknown" if value is None else str(value)


def unscored_notes(run: EvalRun, benchmark: str) -> list[str]:
    """`a: 6 of 24 samples are unscored (HTTP 500: 6)`: what the figures of a run on a benchmark do not count."""
    entry = run.entry(benchmark)
    if not entry.unscored:
        return []
    why = ", ".join(f"{reason}: {count}" for reason, count in Counter(entry.unscored_reasons).most_common(3))
    lost = len(entry.unscored_questions)
    text = f"{run.name}: {entry.unscored} of {entry.unscored + entry.samples} samples are unscored"
    text += f" ({why})" * bool(why) + " and left out of its figures"
    if lost:
        text += f"; {lost} question{'s' * (lost != 1)} without a scored sample {'are' if lost != 1 else 'is'} left out"
    return [f"{text}. The gtpo eval command tries them again"]
