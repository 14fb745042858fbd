"""The second step of loading a config: the published dialect. The authors' files run unchanged; each change is logged.

No key of the dialect exists in a resolved config. Values keep the origin of the key that they were typed under.
docs/config.md lists what each key of the dialect means here.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from gtpo.common.errors import UserError
from gtpo.config.document import Document, read_scalar, unknown_key
from gtpo.config.keys import keys
from gtpo.config.schema import Setting

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
# class_path -> (method, what the log says; empty: a class of ours or TRL's, nothing to say).
TRAINERS: dict[str, tuple[str, str]] = _TABLE["trainers"]
# Path -> (ours, why).
REWARDS: dict[str, tuple[str, str]] = _TABLE["rewards"]
# Key of the dialect, or TRL's own name of a published key -> ours, of the same meaning.
RENAMED: dict[str, str] = _TABLE["renamed"]
WITHOUT_EFFECT: dict[str, str] = _TABLE["without effect"]
# The section that only the dialect has: GTPO's own switches.
_RUNTIME = "gtpo_runtime"


@dataclass
class Findings:
    """What loading a config found: its errors, and what the user should know of a config that is accepted."""

    errors: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    changes: list[tuple[str, Setting, str]] = field(default_factory=list)
    """(key, what set it, notice) of changes within a layer: they count if no layer above sets the key."""

    def raise_errors(self) -> None:
        """Raise one UserError with a line per error, if there are any."""
        if self.errors:
            raise UserError("\n      ".join(dict.fromkeys(self.errors)))


def translate(document: Document, findings: Findings) -> Document:
    """Return one layer in our dialect; note each change, and the errors that only the dialect can have.

    Each layer by itself, before they are laid over each other: so what stands above wins, whichever name it uses.
    """
    for step in (_without_effect, _trainer_class, _values, _renamed):
        document = step(document, findings)
    return document


def complete(document: Document, findings: Findings) -> Document:
    """Return the merged document with what a file that names a class of the authors leaves to us."""
    document, method = _without_runtime(document, findings), document.at("method").value
    for key, setting, notice in findings.changes:
        if document.at(key)[1:] == setting[1:]:
            findings.notices.append(notice)
    origin = document.at("trainer.class_path")
    stands_for, line = _method_of(origin)
    if not stands_for:
        return document
    document = document.without("trainer.class_path")
    if method != stands_for:
        findings.notices.append(f"{origin} {origin.value} has no effect: {document.at('method')} is {method}")
        return document
    if not line:
        return document
    findings.notices.append(f"{origin} {origin.value} -> {line}")
    for key, left_out in _TABLE["left out"].items():
        # GRPO has no preset to choose.
        if document.at(key).value is None and (method == "gtpo" or key != "objective.preset"):
            findings.notices.append(f"    {left_out['notice']}")
            document = document.put(key, left_out["value"]) if "value" in left_out else document
    return document


def _method_of(origin: Setting) -> tuple[str, str]:
    return TRAINERS.get(str(origin.value).replace(":", "."), ("", ""))


def _without_effect(document: Document, findings: Findings) -> Document:
    for key, why in WITHOUT_EFFECT.items():
        if document.at(key).value is not None:
            findings.notices.append(f"{document.at(key)} has no effect: {why}")
        document = document.without(key)
    return document


def _trainer_class(document: Document, findings: Findings) -> Document:
    """Set the method that a class stands for; `complete` takes the class itself away."""
    origin, other = document.at("trainer.class_path"), document.at("method")
    method, _ = _method_of(origin)
    if not method:
        return document
    if other.value not in (None, method):
        words = f'trains with method {method}, but {other} is "{other.value}"; remove one'
        findings.errors.append(f"{origin} {origin.value} {words}")
    return document if other.value is not None else document.put("method", method, origin)


def _values(document: Document, findings: Findings) -> Document:
    """Take values that only the dialect has: "8/12", the authors' rewards, no tracker."""
    groups = document.at("training.num_generations")
    # The authors' way to note two runs.
    if isinstance(groups.value, str) and (several := re.fullmatch(r"\s*(\d+)\s*/.*", groups.value)):
        notice = f'{groups} "{groups.value}": taking {several[1]}'
        findings.changes.append(("training.num_generations", groups, notice))
        document = document.put("training.num_generations", int(several[1]))
    rewards = document.at("trainer.reward_funcs")
    if isinstance(rewards.value, list):
        ours = [REWARDS.get(str(path).replace(":", "."), (path, "")) for path in rewards.value]
        changed = [(path, *new) for path, new in zip(rewards.value, ours, strict=True) if new[1]]
        for path, name, why in changed:
            findings.changes.append(("trainer.reward_funcs", rewards, f"{rewards} {path} -> {name} ({why})"))
        document = document.put("trainer.reward_funcs", [name for name, _ in ours])
    if document.at("training.report_to").value in ("none", ["none"]):  # transformers' word for no tracker
        document = document.put("training.report_to", [])
    return document


def _renamed(document: Document, findings: Findings) -> Document:
    """Move the values of the dialect's keys to ours; an error if the same layer sets those to something else."""
    document = _without_runtime(document, findings)
    for old, new in RENAMED.items():
        origin, other, document = document.at(old), document.at(new), document.without(old)
        value = [origin.value] if keys()[new].many else origin.value
        if origin.value is None:
            continue
        # A flag's value is text.
        if other.value not in (None, []) and read_scalar(other.value) != read_scalar(value):
            findings.errors.append(f"{origin} {origin.value} and {other} {other.value} set the same thing; remove one")
        else:
            findings.changes.append((new, origin, f"{origin} -> {new} {origin.value}"))
            document = document.put(new, value, origin)
    for key, setting in document.items():
        if key[:-1] == (_RUNTIME,):
            findings.errors.append(unknown_key(setting, RENAMED))
    # What is no section is an unknown key.
    return document if document.at(_RUNTIME).value else document.without(_RUNTIME)


def _without_runtime(document: Document, findings: Findings) -> Document:
    """Leave out what is GTPO's in the dialect, if the method is another one."""
    method = document.at("method").value
    if method not in ("grpo", "sft"):
        return document
    runtime = {key: entry for key, entry in document.items() if entry.typed.lstrip("-").startswith(_RUNTIME)}
    if runtime:
        section = next(iter(runtime.values()))._replace(typed=_RUNTIME)
        findings.notices.append(f"{section} has no effect with method {method}")
    for key in runtime:
        document = document.without(".".join(key))
    return document
