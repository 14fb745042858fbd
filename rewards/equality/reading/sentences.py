"""The number that a short sentence gives as its answer: "She sold 72 clips."."""

from __future__ import annotations

import re

from gtpo.rewards.equality.reading.units import CHANGES_MEANING, NEGATIONS, NUMBER_WORDS, scale_of, singular
from gtpo.rewards.text import words

_PHRASE = re.compile(r".*\b(?:answer|solution)\s*(?:is|:|=)\s*:?\s*(.+)$", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(r"(?:(?<![\w.,])-)?\\?\$?\s?\d[\d,]*(?:\.\d+)?(?:\s?\\?%)?")
_HEDGE = re.compile(r"\b(?:not|no|never|or|nor|less|more|least|most|than|cannot|wrong|instead|if)\b|n't", re.IGNORECASE)

_DENIALS = NEGATIONS | words("maybe perhaps possibly")
"""Words that, anywhere in the sentence, take its number back."""
_PREPOSITIONS = words("to for from by at on up after before when if where about around and")
_OPENERS = tuple(f"{word} " for word in sorted(_PREPOSITIONS | words("in of each every as with because")))
_REVERSALS = words(
    "minus plus times negative inverse reciprocal opposite anything differs any "
    "divisible subtracted divided multiplied bigger larger smaller greater"
)
"""Words that, anywhere before a number, say something else of it."""
_BOUNDS = words(
    "over under above below beyond within exceeds exceed but half twice thrice double triple quadruple root square "
    "cube nearly almost between multiple factor multiples factors"
)
"""Words that do so right before it."""
_ARTICLES = words("a an the only exactly just s")
_MEASURED = words(
    "total profit loss gain cost price average mean median mode range distance length width height depth radius "
    "diameter speed rate amount age area volume perimeter circumference weight mass probability value answer score "
    "balance change discount tax tip time duration maximum minimum quantity population temperature remainder savings "
    "salary income revenue bill capacity slope percentage count measure angle fine fee debt wage budget"
)
"""What may be `of` a number: "a total of 72 clips"."""
_NO_PROSE = words("sin cos tan cot sec csc log ln lg exp sqrt pi mod gcd lcm max min det and")


def sentence_value(text: str) -> str | None:
    """Return, as written, the one number of a short sentence ("She sold 72 clips."), or what follows "the answer is".

    None if the sentence hedges, holds a second number, or any other mathematics.
    """
    if len(text) > 400 or len(text.split()) < 3 or "\\boxed" in text or re.search(r"(?<=\w{3})[.!?]\s+\S", text):
        return None
    phrase = _PHRASE.fullmatch(text)
    if phrase is not None and not _HEDGE.search(text):
        return phrase[1]
    numbers = list(_NUMBER.finditer(text))
    rest = _NUMBER.sub(" ", text)
    if len(numbers) != 1 or _HEDGE.search(text) or re.fullmatch(r"[A-Za-z\s.,'’!()\"$]*", rest) is None:
        return None
    spoken = re.findall(r"[A-Za-z]+", rest)
    if len(spoken) < 2 or any(word in _NO_PROSE or (len(word) == 1 and word not in "aIA") for word in spoken):
        return None
    number, tail = numbers[0].group().strip().rstrip(","), text[numbers[0].end() :].strip(" .!")
    if _says_another_number(text[: numbers[0].start()].lower()):
        return None
    following = tail.lower().split(" ")[0]
    if not text[: numbers[0].start()].strip() or not _DENIALS.isdisjoint(rest.lower().split()):
        return None
    if scale_of(following) is None and following in CHANGES_MEANING - _PREPOSITIONS:
        return None
    # A few words are a unit, and must be one; many are the rest of the sentence.
    return (
        f"{number} {tail}"
        if scale_of(following) or (0 < len(tail.split()) <= 3 and not tail.startswith(_OPENERS))
        else number
    )


def _says_another_number(before: str) -> bool:
    """Say whether the words before a number make it another: `minus 12`, `half of 20`, `the square root of 4`."""
    spoken = re.findall(r"[a-z']+", before)
    if not _REVERSALS.isdisjoint(spoken):
        return True
    if re.search(r"\bup to\s*$", before):
        return re.search(r"\b(?:adds?|sums?|comes?) up to\s*$", before) is None
    while spoken and spoken[-1] in _ARTICLES:
        spoken.pop()
    last, before_last = [*reversed(spoken), "", ""][:2]
    if last == "of":
        return _MEASURED.isdisjoint((before_last, singular(before_last)))
    return last in _BOUNDS or last in NUMBER_WORDS or scale_of(last) is not None
