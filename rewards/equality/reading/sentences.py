"""The number that a short sentence gives as its answer: "She sold 72 clips."."""

from __future__ import annotations

import re

from gtpo.rewards.equality.reading.units import CHANGES_MEANING, NEGATIONS, NUMBER_WORDS, scale_of, singular
from gtpo.rewards.text import words

_PHRASE = re.compile(r"(.*?)\b(?:answer|solution)\s*(?:is|:|=)\s*:?\s*(.+)$", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(r"(?:(?<![\w.,])-)?\\?\$?\s?\d[\d,]*(?:\.\d+)?(?:\s?\\?%)?")
_HEDGE = re.compile(r"\b(?:not|no|never|or|nor|less|more|least|most|than|cannot|wrong|instead|if)\b|n't", re.IGNORECASE)

_DENIALS = NEGATIONS | words("maybe perhaps possibly")
"""Words that, anywhere in the sentence, take its number back."""
_OPINIONS = words(
    "thinks think thought says said say claims claim claimed believes believe believed guesses guess guessed assumes "
    "assume assumed supposes suspects estimates estimated doubts wonders imagines hopes hoped wants wanted wished "
    "pretends expects expected predicts predicted tells told"
)
"""Verbs by which somebody else than the speaker states a number."""
_MODALS = words("could might ought")
_PREPOSITIONS = words("to for from by at on up after before when if where about around and")
_OPENERS = tuple(f"{word} " for word in sorted(_PREPOSITIONS | words("in of each every as with because")))
_REVERSALS = words(
    "minus plus times negative inverse reciprocal opposite anything differs any divisible subtracted divided "
    "multiplied bigger larger smaller greater"
)
"""Words that, anywhere before a number, say something else of it."""
_CHOOSING = [
    words(each)
    for each in (
        "first", "second", "third", "fourth", "fifth", "last final", "other another remaining", "next", "previous",
        "larger largest greater greatest bigger biggest longer longest higher highest maximum older oldest taller",
        "smaller smallest lesser least shorter shortest lower lowest minimum younger youngest", "middle",
    )
]  # fmt: skip
"""Words that say which of several a number is."""
_ARTICLES = words("a an the only exactly just s about around approximately roughly")
_MEASURED = words(
    "total profit loss gain cost price average mean median mode range distance length width height depth radius "
    "diameter speed rate amount age area volume perimeter circumference weight mass probability value answer score "
    "balance change discount tax tip time duration maximum minimum quantity population temperature remainder savings "
    "salary income revenue bill capacity slope percentage count measure angle fine fee debt wage budget"
)
"""What may be `of` a number: "a total of 72 clips"."""
_VERBS = words(
    "is are was were be equals has have had got gets get gave took left ran won paid spent bought sold made ate drank "
    "cost did do does found kept lost met read rode saw sent slept spoke swam taught told thought threw went wore "
    "wrote grew drew flew knew built brought caught chose cut drove fed fell held hit hurt lay led lent put set sat "
    "sang shot stood stole swept need take give see eat earn spend make sell buy pay use want save walk run find win"
)
"""Verbs that a number may follow, besides those that end in s or ed."""
_NO_VERBS = words("as plus minus times less its his this yes perhaps always besides towards versus across unless")
_BOUNDS = words(
    "over under above below beyond within exceeds exceed exceeded but half twice thrice double triple quadruple root "
    "square cube nearly almost between multiple factor multiples factors as than besides towards versus across unless"
)
"""Words that make another number of the one that follows."""
_LEADS = words(
    "so thus hence therefore then finally and now in total all altogether overall since because at after on for by "
    "from as with during to the end my our final correct we i you get got find found conclude know see have say think "
    "believe obtain means shows follows that this it can must of question problem given above answer solution is was "
    "be"
)
"""What a statement of an answer may begin with."""
_PLACING = words("in after at by on for during with to before")
_LOOSE = words("for at in with")
"""Those that need not stand right after the verb: "he is away for 10 hours"."""
_SUBJECTS = words("i we you he she it they there that this who which")
_NO_PROSE = words("sin cos tan cot sec csc log ln lg exp sqrt pi mod gcd lcm max min det and")


def sentence_value(text: str, asked: frozenset[str] = frozenset()) -> str | None:
    """Return, as written, the one number of a short sentence ("She sold 72 clips."), or what follows "the answer is".

    `asked`: words of the question. None if the sentence hedges, holds a second number, any other mathematics, or
    chooses (the larger, the second) what the question does not.
    """
    if len(text) > 400 or len(text.split()) < 3 or "\\boxed" in text or re.search(r"(?<=\w{3})[.!?]\s+\S", text):
        return None
    phrase = _PHRASE.fullmatch(text)
    if phrase is not None and not _HEDGE.search(text):
        return phrase[2] if _LEADS.issuperset(re.findall(r"[a-z']+", phrase[1].lower())) else None
    numbers = list(_NUMBER.finditer(text))
    rest = _NUMBER.sub(" ", text)
    if len(numbers) != 1 or _HEDGE.search(text) or re.fullmatch(r"[A-Za-z\s.,'’!()\"$]*", rest) is None:
        return None
    spoken = re.findall(r"[A-Za-z]+", rest)
    if len(spoken) < 2 or any(word in _NO_PROSE or (len(word) == 1 and word not in "aIA") for word in spoken):
        return None
    said = rest.lower().split()
    if any(not kind.isdisjoint(said) and kind.isdisjoint(asked) for kind in _CHOOSING):
        return None  # it speaks of another than the one asked for: of the second number, or of the larger
    number, tail = numbers[0].group().strip().rstrip(","), text[numbers[0].end() :].strip(" .!")
    if not _states_a_number(text[: numbers[0].start()].lower()):
        return None
    following = tail.lower().split(" ")[0]
    if not text[: numbers[0].start()].strip() or not _DENIALS.isdisjoint(said):
        return None
    if scale_of(following) is None and following in CHANGES_MEANING - _PREPOSITIONS:
        return None
    # A few words are a unit, and must be one; many are the rest of the sentence.
    return (
        f"{number} {tail}"
        if scale_of(following) or (0 < len(tail.split()) <= 3 and not tail.startswith(_OPENERS))
        else number
    )


def _states_a_number(before: str) -> bool:
    """Return whether the words before a number state it: one clause, whose verb it follows, or "a total of" and such.

    `half of 20`, `the number after 42`, `twice as many as 42` and `I doubt that it is 42` do not.
    """
    spoken = re.findall(r"[a-z']+", re.sub(r"\bthe (?:bigger|larger|smaller|greater)\b(?! (?:than|by))", "the", before))
    if not (_REVERSALS | _MODALS).isdisjoint(spoken) or re.search(r"\b(?:used to|should have|may have)\b", before):
        return False
    if any(word in _OPINIONS and spoken[max(0, at - 1)] not in ("i", "we") for at, word in enumerate(spoken)):
        return False
    inner = next((at for at, word in enumerate(spoken) if at and word in _SUBJECTS), 0)
    if inner and spoken[0] not in _PLACING and not _LEADS.issuperset(spoken[:inner]):
        return False  # a clause within another, which may say anything of it
    while spoken and spoken[-1] in _ARTICLES:
        spoken.pop()
    if len(spoken) > 2 and spoken[-1] in _PLACING and (spoken[-1] in _LOOSE or _is_verb(spoken[-2])):
        spoken.pop()  # `leaves after 12 minutes`
    last, before_last = [*reversed(spoken), "", ""][:2]
    if last == "of":
        return not _MEASURED.isdisjoint((before_last, singular(before_last)))
    if last == "to" and before_last == "up":
        return spoken[-3:-2] in (["adds"], ["add"], ["sums"], ["sum"], ["comes"], ["come"])
    if last in NUMBER_WORDS or scale_of(last) is not None or last in _BOUNDS or last in _PREPOSITIONS | _PLACING:
        return False
    return any(map(_is_verb, spoken)) or before.rstrip().endswith((":", "="))


def _is_verb(word: str) -> bool:
    return word in _VERBS or (word.endswith(("ed", "s")) and word not in _NO_VERBS)
