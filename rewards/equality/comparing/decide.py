"""From two answers as written to an outcome: clean, read, compare. What the workers run."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import takewhile

from mpmath import mp

from gtpo.rewards.completions import plain, without_thoughts
from gtpo.rewards.equality.answers import Answer, Listing, Named, Relation, Scalar, Words, leaves, parts_of
from gtpo.rewards.equality.arithmetic import Budget, NoValue, Term, TooBig, canonical, evaluate, parts, symbols
from gtpo.rewards.equality.comparing.comparison import Comparison
from gtpo.rewards.equality.comparing.work import finding, work_left
from gtpo.rewards.equality.reading import SAYS
from gtpo.rewards.equality.reading.clean import PRICE, clean, cores, same_name, same_words, says_no_less, unwrap_answer
from gtpo.rewards.equality.reading.problem import ProblemText, name_in, read_problem
from gtpo.rewards.equality.reading.reader import read, split_choice
from gtpo.rewards.equality.reading.units import spell_symbols
from gtpo.rewards.extract import last_boxes, of_gold, together
from gtpo.rewards.limits import ANSWERS_KEPT, DIGITS

# `120m`: units of one letter, which anywhere else are variables.
_UNIT_LETTER = re.compile(r"(-?[\d.,]+|-?\\[dt]?frac\{\d+\}\{\d+\}) ?([msghlLNJWVK])\.*")
# `5 N`, `5\text{ N}`, `5{N}` of a cleaned text.
_LETTER_BY_NUMBER = re.compile(
    r"(?:(?<=[\d)}])\s*(?:\\text\s*\{\s*([a-zA-Z])\s*\}|([a-zA-Z]))|(?<=[\d)])\s*\{\s*([a-zA-Z])\s*\})(?![a-zA-Z])"
)
_MIXED_NUMBER = re.compile(r"(-?\d+) and (?=\d+ ?/ ?\d+|\\[dt]?frac\{\d+\}\{\d+\})")
_EACH = frozenset(("each", "apiece", "per", "every", "one"))
_OPTION_LETTER = re.compile(r"^\s*\(?[a-h]\)?\s*\.?\s*$")
_read = lru_cache(maxsize=ANSWERS_KEPT)(read)


@lru_cache(maxsize=ANSWERS_KEPT)
def _texts(
    text: str, gold: bool = False, asked: frozenset[str] = frozenset(), others: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Return an answer, unwrapped, and what is left of it as the words around it are read away (`cores`)."""
    text = without_thoughts(plain(text)) if "think" in text.lower() else text
    text = of_gold(text) if gold else text  # GSM8K's own field `answer` holds the solution too
    boxes = together(last_boxes(text), text) if "boxed" in text else []
    text = unwrap_answer(", ".join(boxes) if len(boxes) > 1 else text, gold)
    return tuple(cores(text, asked, others))


@lru_cache(maxsize=ANSWERS_KEPT)
def _readings(text: str, gold: bool = False, known: bool = False) -> tuple[str, ...]:
    """Return the cleaned texts that a text without words may be read as, by what its commas might mean."""
    cleaned = clean(text, gold)
    bracketed = cleaned.startswith(("(", "[", "\\{"))
    thousands = SAYS.typed_thousands.sub(lambda m: m[1] + m[2].replace(",", ""), cleaned)
    if thousands != cleaned and (not bracketed or ", " in cleaned):
        # `1,234` might be a list; `115,000` is none, for no list has an entry 000
        return (thousands,) if re.search(r",0\d\d", cleaned) else (thousands, cleaned)
    # A gold with a known problem has no decimal comma: its problem is in English.
    if not (gold and known) and re.fullmatch(r"[-+]?(?:\d+,\d{2}|\d+,\d{4,}|0,\d{3,})", cleaned):
        return cleaned, cleaned.replace(",", ".")
    return (cleaned,)


def selected(text: str) -> frozenset[str]:
    """Return the options that "which of these" is answered with (`A, C`, `AC`, `①③`, `(1)(3)`), none for others."""
    marks = re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", r"\1", text).strip(" .$")
    if re.fullmatch(r"(?:(?:[A-H]|[①-⑳]|\(\d\))(?:[\s,;、]|and|\\)*)+", marks) is None:
        return frozenset()
    return frozenset(unicodedata.normalize("NFKC", mark) for mark in re.findall(r"[A-H①-⑳\d]", marks))


def read_answer(gold: str) -> Answer:
    """Return what a gold with a known problem is read as. Raises TooBig."""
    return _read(_readings(_texts(gold, gold=True)[0], gold=True, known=True)[0])


def _read_for(text: str, known: ProblemText, gold: bool = False) -> list[str]:
    """Return what a text may be read as for its problem: `5 N` in terms of N, `3 and 1/2` as one number of hours."""
    found = _readings(_MIXED_NUMBER.sub(r"\1 ", text) if known.counted else text, gold, gold and known.is_known)

    def joined(match: re.Match[str]) -> str:
        letter = match[match.lastindex or 0]
        return letter if letter in known.variables else match[0]

    return [_LETTER_BY_NUMBER.sub(joined, reading) for reading in found]


def decide(prediction: str, gold: str, problem: str | None = None, by_text: bool = True) -> str:
    """Return CORRECT, INCORRECT, COPIED or UNEVALUATED (see `work`), REJECTED or UNUSABLE_GOLD (beyond the bounds).

    Without `by_text`, equal text alone does not decide: the answer must be within what can be evaluated.
    """
    mp.dps = DIGITS
    # What is looked up in the problem is kept: it must not hang on what the answer before has left.
    Budget.refill()
    known = read_problem(problem or "")
    if known.symbols:
        prediction, gold = (spell_symbols(each, known.symbols)[0] for each in (prediction, gold))
    found = _decided(prediction, gold, known, by_text)
    run = known.counted_run
    if found == "INCORRECT" and run is not None and run.search(prediction):
        return _decided(run.sub("", prediction), run.sub("", gold), known, by_text)
    return found


def _decided(prediction: str, gold: str, known: ProblemText, by_text: bool) -> str:
    foreign = known.contract.currencies and known.contract.currencies.isdisjoint(("dollar", "cent"))
    price = (known.contract.counts or foreign) and PRICE.fullmatch(prediction.strip())
    each = known.is_known and prediction.rstrip(" .!").endswith((" each", " apiece"))
    if price or (each and known.vocabulary.isdisjoint(_EACH)):
        return "INCORRECT"  # `$5` for "how many apples", or for rupees
    # `①③`, `AC`: which of the statements hold, in whatever order.
    several = re.search("[①-⑳]", gold) or (known.options and not known.contract.order)
    wanted, named = selected(gold), selected(prediction)
    if several and len(wanted) > 1 and named:
        return "CORRECT" if wanted == named else "INCORRECT"
    if len(named) > 1 and len(wanted) == 1:  # `A and C`, where `A` is no article
        return "INCORRECT"
    # Without a space there are no words to read away, and one entry of the cache serves all problems.
    spoken = (known.speaking, known.others) if " " in prediction else ()
    texts = _texts(prediction, False, *spoken)
    if known.contract.units and (joined := _UNIT_LETTER.fullmatch(texts[-1])) and joined[2] not in known.variables:
        texts = (*texts, f"{joined[1]} {joined[2]}")  # `120m`, if a measure is asked for
    # A name is no mathematics: as products of their letters `Al` and `la` would be equal.
    if (name := name_in(gold, known, trusted=True)) is not None:
        if any(same_name(clean(text), name) for text in texts) or name_in(prediction, known) == name:
            return "CORRECT"
        if name == gold.strip():
            return "INCORRECT"
    parts = [(core, _read_for(core, known, gold=True)) for core in _texts(gold, gold=True)]
    # No part of a gold that says more is the gold.
    whole = takewhile(lambda part: says_no_less(part[0], parts[0][0]), parts)
    golds = [reading for _, readings in whole for reading in readings]
    chosen = [choice for reading in golds if (choice := split_choice(reading)) is not None]
    letters = bool(chosen or known.options) or not known.is_known
    if known.options and re.fullmatch(r"\(?[A-H]\)?", gold.strip()):
        texts = tuple(_OPTION_LETTER.sub(lambda m: m.group().upper(), text) for text in texts)
    judge = _Judge(known, golds, [rest for _, rest, _ in chosen if rest], letters, by_text)
    try:
        # Each is judged as if it had been the answer; the least of those that are equal to the gold counts.
        found = [judge.outcome(_read_for(text, known)) for text in texts]
        worded = isinstance(_read(_read_for(texts[-1], known)[0]), Words) or SAYS.point.match(prediction)
        if "CORRECT" in found and found[-1] == "INCORRECT" and not worded:
            # A text with two values has none. What is left of an answer that says the gold is left of the gold too.
            rest = _Judge(known, [reading for _, readings in parts for reading in readings], [], letters, by_text)
            if rest.outcome(_read_for(texts[-1], known)) == "INCORRECT":
                return "INCORRECT"
        return next(each for each in ("COPIED", "UNEVALUATED", "CORRECT", "INCORRECT") if each in found)
    except TooBig:
        return "UNUSABLE_GOLD" if _is_too_big(golds) else "REJECTED"


@dataclass
class _Judge:
    """What one gold and its problem make of the readings of an answer."""

    known: ProblemText
    golds: list[str]
    bodies: list[str]  # what stands beside the letters of golds that are choices
    letters: bool  # whether letters choose something here
    by_text: bool

    def outcome(self, predictions: Sequence[str]) -> str:
        """Return what an answer comes to, as it stands and, if letters choose something here, without its letter."""
        for prediction in predictions:
            choice = split_choice(prediction) if self.letters else None
            if choice is not None and choice[1]:
                return self._chosen(*choice)
        found = self._judged(predictions, [*self.golds, *self.bodies])
        if found == "INCORRECT" and self.known.options:
            # The option for its letter, or the letter for its option.
            options = self.known.options
            wanted = [clean(o) for g in self.golds if (o := options.get(g.strip("()").upper())) is not None]
            if wanted:
                return self._judged(predictions, wanted)
            given = [clean(o) for p in predictions if (o := options.get(p.strip("()").upper())) is not None]
            if given and len(predictions[0]) < 4:
                return self._judged(given, [*self.golds, *self.bodies])
        return found

    def _chosen(self, letter: str, body: str, marked: bool) -> str:
        """Return what a letter with an answer beside it comes to: the answer must be the option's, and no less done."""
        option = self.known.options.get(letter.upper())
        of_option = None if option is None else self._judged([body], [clean(option)])
        if of_option == "INCORRECT":
            return of_option
        by_letter = self._judged([f"({letter})" if marked else letter], self.golds)
        own = [gold for gold in self.golds if split_choice(gold) is None and len(gold) > 1] + self.bodies
        if by_letter == "CORRECT" and not own:
            return of_option or by_letter
        if by_letter != "CORRECT" and self.bodies:
            return "INCORRECT"  # another letter than the gold's
        return self._judged([body], own)

    def _judged(self, predictions: Sequence[str], golds: Sequence[str]) -> str:
        known = self.known
        if self.by_text and any(same_words(p, g) for p in predictions for g in golds):
            return "CORRECT"
        if self.letters and any(_same_letter(p, g) for p in predictions for g in golds):
            return "CORRECT"
        Budget.refill()
        theirs, ours = ([(text, _read(text)) for text in texts] for texts in (golds, predictions))
        Budget.refill()  # the comparison has its own: what it may spend must not hang on what was read before
        comparison = Comparison(known)
        found = {
            finding(prediction, matching, gold, g, known)
            for prediction, p in ours
            for gold, g in theirs
            if (matching := comparison.matching(p, g)) is not None
        }
        # A text with two readings, as `1,234` has, is given the better one.
        return next((outcome for outcome in ("CORRECT", "UNEVALUATED", "COPIED") if outcome in found), "INCORRECT")


def _same_letter(prediction: str, gold: str) -> bool:
    """Return whether two texts are the same letter, one of them at least written as a choice is."""
    ours, theirs = split_choice(prediction), split_choice(gold)
    first, second = ours[0] if ours else prediction, theirs[0] if theirs else gold
    # Behind parentheses or a point its case says nothing.
    same = first.lower() == second.lower() if ours is not None and ours[2] else first == second
    return same and (ours, theirs) != (None, None)


def _is_too_big(golds: Sequence[str]) -> bool:
    """Return whether a gold cannot be compared with itself: then the prediction is not to blame."""
    Budget.refill()
    try:
        for gold in map(_read, golds):
            Comparison(read_problem("")).equal(gold, gold)
            if isinstance(gold, Scalar):
                evaluate(gold.term, dict.fromkeys(symbols(gold.term), Fraction(1, 2)))
    except (TooBig, NoValue) as error:
        return isinstance(error, TooBig)
    return False


# -- why a verdict is what it is, in one line -------------------------------------------------------------------------
def explain(prediction: str, gold: str, problem: str | None = None) -> str:
    """Return the finding and, behind a tab, what it rests on."""
    found = decide(prediction, gold, problem)
    Budget.refill()
    ours = [_read(_readings(each)[0]) for each in _texts(prediction)]
    work = ", ".join(sorted({kind.value for leaf in leaves(ours[-1]) for kind in +work_left(leaf.term)}))
    rule = {
        "CORRECT": "equal, and nothing is left to compute that the gold does not leave",
        "INCORRECT": "not equal, or not understood, or a text with two values",
        "COPIED": f"equal, but copied from the problem{work and '; it leaves '}{work}",
        "UNEVALUATED": f"equal, but {f'it leaves {work}' if work else 'not in the form asked for'}",
    }.get(found, "beyond the limits on work")
    return f"{found}\t{' -> '.join(dict.fromkeys(map(shown, ours)))} | gold {shown(read_answer(gold))}: {rule}"


def shown(answer: Answer) -> str:
    """Return an answer's kind and normal form."""
    if isinstance(answer, Scalar):
        return " ".join(filter(None, (_shown(canonical(answer.term)), "%" * answer.percent, answer.unit.name)))
    if isinstance(answer, Words):
        return f'words "{answer.text}"'
    if isinstance(answer, Named):
        return f"{answer.name} = {shown(answer.value)}"
    if isinstance(answer, Relation):
        return f"{' '.join(map(_shown, answer.terms))} ({' '.join(answer.ops)})"
    kind = answer.kind if isinstance(answer, Listing) else type(answer).__name__.lower()
    return f"{kind} [{', '.join(map(shown, parts_of(answer)))}]"


def _shown(term: Term) -> str:
    if term[0] == "num":
        return str(Fraction(term[1]))
    if term[0] in ("sym", "const"):
        return str(term[1])
    inner = [_shown(part) for part in parts(term)]
    sign = {"add": " + ", "mul": " ", "pow": "^"}.get(term[0])
    if sign is not None:
        return "(" + sign.join(inner) + ")"
    return f"{term[1] if term[0] in ('fn', 'opaque', 'bind') else 'matrix'}({', '.join(inner)})"
