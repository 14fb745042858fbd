"""Canaries: the first questions, asked of every server before a session samples.

Each is asked with several seeds and once more with the first: does the seed matter, does the same seed give the same
text, and which model answers? A later session compares: another model is refused, another text is named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

QUESTIONS = 2
SEEDS = 4
TOKENS = 48
"""Most tokens of a canary."""


class Reply(NamedTuple):
    """The completion of a canary: its question, seed, and text."""

    server: str
    question: str
    seed: int
    text: str


def judge(replies: Iterable[Reply], models: Iterable[str], fingerprints: Iterable[str]) -> dict[str, Any]:
    """Return what eval.json keeps. seed_matters and repeats are None where nothing can be said.

    Texts are kept as hashes, those of several servers side by side. Empty ones (thoughts that are not shown) say
    nothing.
    """
    by_question: dict[tuple[str, str], dict[int, list[str]]] = {}
    texts: dict[str, set[str]] = {}
    for one in replies:
        if one.text.strip():
            by_question.setdefault((one.server, one.question), {}).setdefault(one.seed, []).append(one.text)
            digest = hashlib.sha256(one.text.encode()).hexdigest()[:16]
            texts.setdefault(f"{one.question} {one.seed}", set()).add(digest)
    many = any(len(seeds) > 1 for seeds in by_question.values())
    twice = [found for seeds in by_question.values() for found in seeds.values() if len(found) > 1]
    return {
        "models": sorted(set(models)),
        "fingerprints": sorted(set(fingerprints)),
        "seed_matters": any(len(set(chain(*seeds.values()))) > 1 for seeds in by_question.values()) if many else None,
        "repeats": all(len(set(found)) == 1 for found in twice) if twice else None,
        "texts": {key: sorted(found) for key, found in sorted(texts.items())},
    }


def concerns(found: Mapping[str, Any], temperature: float) -> list[str]:
    """Return what the user should know before sampling."""
    said = []
    if temperature > 0 and found["seed_matters"] is False:
        said.append(
            f"{SEEDS} requests with different seeds got the same text, for every question that was tried: the samples "
            "of a question may be copies of one (a cache, or a seed that the server sets itself)"
        )
    if found["repeats"] is False and found["seed_matters"] is not False:
        said.append("the same seed gave different texts: the server's samples cannot be repeated")
    return said


def change(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    """Return why a session must not go on with another one's samples, if it must not, and what else has changed."""
    if before["models"] and now["models"] and set(before["models"]) != set(now["models"]):
        return f"{', '.join(now['models'])} answers, and {', '.join(before['models'])} did before", []
    named = []
    if before["fingerprints"] != now["fingerprints"] and before["fingerprints"]:
        named.append(
            f"system_fingerprint was {', '.join(before['fingerprints'])} and is "
            f"{', '.join(now['fingerprints']) or 'not given'}"
        )
    common = before["texts"].keys() & now["texts"].keys()
    other = [key for key in common if not set(before["texts"][key]) & set(now["texts"][key])]
    if common and before["repeats"] and now["repeats"]:
        if len(other) == len(common) > 1:
            return f"all of the {len(common)} first texts are others than they were for the same seeds", []
        if other:
            named.append(f"{len(other)} of {len(common)} first texts are others than they were for the same seeds")
    return None, named


def copies(texts: Mapping[tuple[str, str], Sequence[int]]) -> tuple[int, int]:
    """Return (questions whose samples are all one text, questions) of those with four samples or more.

    texts: question -> a hash of each sample's text.
    """
    several = [found for found in texts.values() if len(found) >= SEEDS]
    return sum(len(set(found)) == 1 for found in several), len(several)
