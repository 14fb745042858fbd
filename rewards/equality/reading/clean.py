r"""Cleaning: what an answer may be wrapped in, and the many spellings of one symbol. Text in, text out, linear time.

After `clean`, an answer holds no `$`, no `\left`, no spacing or font command, one spelling of fractions, percent
and degrees, and its thousands separators are gone if they cannot be anything else.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from gtpo.rewards.completions import words
from gtpo.rewards.equality.reading import SAYS, TABLES, patterns
from gtpo.rewards.extract import ANSWER, UNSEEN, last_boxed, match_brace, without_operand_box

_TRANSLATION = str.maketrans(TABLES["characters"] | dict.fromkeys(map(chr, UNSEEN), ""))
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿˣ", "0123456789+-nx")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_RAISED_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿˣ]+")
_LOWERED_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")

_SIZES = re.compile(r"\\(?:[bB]igg?[lrm]?|left|right|middle)(?![a-zA-Z])\s*(?:\.(?!\d))?")
_THOUSANDS = re.compile(r"(?<![\d.])([1-9]\d{0,2})((?:\s*(?:\{\s*,\s*\}(?:\\!)?|,?\s*\\!|\\[, ]|~)\s*\d{3})+)(?!\d)")
_TYPED_THOUSANDS = re.compile(r"(?<![\d.,])([1-9]\d{0,2})((?:,\d{3})+)(?!\d|,\d)")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,])(?<![\d}] )([1-9]\d{0,2})((?: \d{3})+)(?![\d]| \d)")
_FONTS = re.compile(
    r"\\(?:mathrm|mathbf|mathit|mathsf|mathnormal|boldsymbol|bm|pmb|mathcal|mathscr|operatorname\*?)\s*\{"
)
_TEXTS = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|sc|up)?|mbox|hbox|emph|underline|textnormal|textcolor\{\w+\})\s*\{"
)
# `0.1\overline{6}`, `0.1(6)`, and `0.1666...`, whose last digits must repeat themselves.
_REPEATING = re.compile(
    r"(?<![\d.])(?P<whole>\d*)\.(?P<fixed>\d*)(?:\\(?:overline|bar|dot)\s*\{?\s*(?P<bar>\d+)\s*\}?|\((?P<bracket>\d+)\)"
    r"|(?P<run>(?P<first>\d)(?P=first)+|(?P<block>\d{2,6}?)(?P=block)+)\s*(?:\.\.\.|\\l?dots))"
)
# The modulus of a congruence, `x \equiv 4 \mod 5`: no operation.
_RESIDUE = re.compile(r"\s*(?:\\bmod|\\mod|(?<![a-zA-Z\\])mod)(?![a-zA-Z])\s*\{?\s*(\w+)\s*\}?\s*$")
_STARRED = re.compile(r"(\*{1,3}|_{1,2})(?![*_])(.+?)(?<![*_])\1", re.DOTALL)
# Commands with another name, and commands of layout, which are dropped.
_RENAMED = {name: by for by, names in TABLES["commands"].items() for name in names.split()}
_COMMAND = re.compile(r"\\([a-zA-Z]+)")


def _repeating(match: re.Match[str]) -> str:
    period = match["bar"] or match["bracket"] or match["first"] or match["block"]
    return f"\\repeating{{{match['whole']}}}{{{match['fixed']}}}{{{period}}}"


_TYPED: list[tuple[re.Pattern[str], Any]] = [
    (_REPEATING, _repeating),
    (re.compile(r"(?<![\d.,])(\d{1,2}(?:,\d\d)+,\d{3})(?![\d,])"), lambda m: m[1].replace(",", "")),  # 1,00,000
    (re.compile(r"(?<![\d.,'])(\d{1,3}(?:'\d{3})+)(?![\d'])"), lambda m: m[1].replace("'", "")),  # 1'234'567
    (
        re.compile(r"(?<![\d.,])([1-9]\d{0,2}(?:\.\d{3})+,\d+|[1-9]\d{0,2}(?:\.\d{3}){2,})(?![\d.,])"),  # 1.234,56
        lambda m: m[1].replace(".", "").replace(",", "."),
    ),
    *patterns("spellings"),
]
_SYNONYMS = [*_TYPED, *patterns("spellings of LaTeX")]
# In a gold, one dollar sign before a number delimits no formula; what samples have before a number is any habit.
PRICE = re.compile(r"-?\$\s?\d[\d,]*(?:\.\d+)?")
_NAMED_SETS = patterns("words for symbols")
_CASES = re.compile(
    r"(?:\\left)?\s*(?:\\\{)?\s*\\begin\s*\{cases\}(.*?)\\end\s*\{cases\}"
    r"|(?:\\left)?\s*\\\{\s*\\begin\s*\{array\}\s*\{[lcr| ]*\}(.*?)\\end\s*\{array\}",
    re.DOTALL,
)
_ENVIRONMENT = re.compile(
    r"\\begin\s*\{(?:align|equation|gather|aligned|split|center|gathered)\*?\}|\\end\s*\{(?:align|equation|gather|aligned|split|center|gathered)\*?\}"
)


def _contents(
    pattern: re.Pattern[str], text: str, replaced: Callable[[re.Match[str], str], str], between: str = ""
) -> str:
    r"""Replace each `\command{content}` that the pattern opens, balanced; `between` goes before all but the first."""
    parts: list[str] = []
    position = 0
    while (match := pattern.search(text, position)) is not None:
        end = match_brace(text, match.end() - 1)
        if end < 0:
            break
        parts += [text[position : match.start()], between if parts else "", replaced(match, text[match.end() : end])]
        position = end + 1
    return "".join(parts) + text[position:]


def _text(match: re.Match[str], content: str) -> str:
    bare = content.strip()
    if bare in _NAMED_FUNCTIONS or bare == "\\$":
        return f"\\{bare} " if bare[0] != "\\" else bare
    return f"\\text{{{_contents(_TEXTS, content, _text)}}}"


_NAMED_FUNCTIONS = words("sin cos tan log ln cot sec csc gcd lcm max det")  # `min` stands for minutes too
_AFTER_NUMBER = re.compile(r"[\d}]\s*(?:\\[ ,;:!~]|~)*\s*$")


def _font(match: re.Match[str], content: str) -> str:
    r"""Drop a font command: `\mathbf{i}` is the unit vector and not the imaginary unit; `\mathrm{cm}` is text."""
    content = content.strip()
    if content in ("i", "j", "k", "e") and match.group().startswith(("\\mathbf", "\\bold", "\\bm", "\\pmb")):
        return f"\\unitvector{{{content}}}"
    if re.fullmatch(r"[A-Za-z][A-Za-z .]+", content) is None:
        return content
    before = match.string[max(0, match.start() - 20) : match.start()]
    measured = content in ("min", "sec") and _AFTER_NUMBER.search(before)  # minutes, seconds
    return f"\\{content} " if content in _NAMED_FUNCTIONS | {"min"} and not measured else f"\\text{{{content}}}"


def _undouble(text: str) -> str:
    r"""Undo the doubled backslashes of text that was escaped once too often: `\\frac{1}{2}`."""
    # In an environment `\\` ends a row.
    if "\\\\" not in text or re.search(r"(?<!\\)\\begin", text):
        return text
    return re.sub(r"\\\\(?=[a-zA-Z({\[|,;!%$]|\}(?!\}))", r"\\", text)


_RAISED_HTML = re.compile(r"<(sup|sub)>(.*?)</\1>", re.IGNORECASE | re.DOTALL)
# A command around a whole answer that holds mathematics.
_AROUND = re.compile(
    r"^\\(?:underline|mathbf|text(?:bf|it|rm|sf|tt|normal)?|ensuremath|boldsymbol|bm|textcolor\s*\{\w+\}|color\s*\{\w+\}|mathrm)\s*\{(?=[\s\S]*[\d\\])"
)
_DECORATIONS, _MARKS = patterns("decorations"), patterns("marks of lists and ends")
_ENTITY = re.compile(r"&(?:[a-zA-Z]{2,8}|#\d{2,5});")
_DELIMITED = re.compile(r"(?<!\\)\\\((.*?)(?<!\\)\\\)|(?<!\\)\\\[(.*?)(?<!\\)\\\]|\$\$(.+?)\$\$", re.DOTALL)
_STARRED_WITHIN = re.compile(r"(?<![\w*\\])\*\*([^*\n]+?)\*\*(?![\w*])")


def unwrap_answer(text: str, gold: bool = False) -> str:
    r"""Take an answer out of what decorates it: answer tags, `\boxed`, markdown, HTML, ticks; formulas stand in `$`."""
    text = text.strip()
    # To Python `选C` is alphanumeric too.
    if text.isascii() and text.isalnum():
        return text
    if "<answer>" in text:
        text = [text, *ANSWER.findall(text)][-1]
    if "box" in text:
        text = text.replace("\\framebox", "\\fbox")
        for _ in range(50):
            inside = without_operand_box(text) or last_boxed(text)
            if inside is None:
                break
            text = inside
        opened = re.fullmatch(r"\$?\\boxed\s*\{(.*)", text.strip(), re.DOTALL)
        if gold and opened is not None and match_brace(text, text.index("{")) < 0:
            text = opened[1]  # a gold whose last brace was lost with the rest of its solution
    if "<" in text:
        text = _RAISED_HTML.sub(lambda m: ("^{" if m[1].lower() == "sup" else "_{") + m[2] + "}", text)
    if "&" in text:
        text = _ENTITY.sub(lambda m: html.unescape(m.group()), text)
    if "<" in text or "\n" in text or text[:1] == "{" or not text.isascii():  # what each decoration needs
        text = _substituted(text, _DECORATIONS)
    text = _substituted(text.strip(), _MARKS)
    text = _DELIMITED.sub(lambda m: f"${next(part for part in m.groups() if part is not None).strip()}$", text)
    for _ in range(3):
        before = text
        text = text.strip().strip("`").strip().strip('"')
        text = text[1:-1] if len(text) > 2 and text[0] in "'“" and text[-1] in "'”" else text
        starred = _STARRED.fullmatch(text)  # markdown's emphasis
        text = starred[2] if starred and starred[1] not in starred[2] else _STARRED_WITHIN.sub(r"\1", text)
        if (formula := re.fullmatch(r"\$([^$]+)(?<!\\)\$[.,]?", text)) is not None:
            text = formula[1]
        around = _AROUND.match(text)
        if around is not None and match_brace(text, around.end() - 1) == len(text) - 1:
            text = text[around.end() : -1]
        if text == before:
            break
    return text.strip()


# A union with the empty set.
_NOTHING_JOINED = re.compile(r"\s*\\cup\s*(?:\\emptyset|\\varnothing|\\\{\s*\\\})(?![a-zA-Z])")


def clean(text: str, gold: bool = False) -> str:
    """Return the answer in the one spelling that the reader understands."""
    if text.isascii() and text.isdigit():
        return text
    text = text.replace("\x0crac", r"\frac")  # what `\f` of an unescaped string becomes
    text = _undouble(unwrap_answer(_undouble(text), gold))
    text = one_spelling(text)
    text = _CASES.sub(_cases, text)
    text = re.sub(r"^\s*&\s*=?", "", _ENVIRONMENT.sub(" ", text))
    # After the spellings, by which a thin space of Unicode between digits has become `\,`.
    text = _THOUSANDS.sub(lambda m: m[1] + re.sub(r"\D", "", m[2]), text)
    text = _SPACED_THOUSANDS.sub(lambda m: m[1] + m[2].replace(" ", ""), text)
    text = re.sub(r"(?<!\\)\$", r"\\$" if gold and PRICE.fullmatch(text.strip()) else " ", text)
    text = _synonyms(text)
    text = re.sub(r"\s+", " ", text).strip()
    for _ in range(3):
        if text.startswith("{") and match_brace(text, 0) == len(text) - 1:
            text = text[1:-1].strip()
        if not text.endswith("\\}"):
            text = text.rstrip(" .,;:").removesuffix("\\\\").removesuffix("\\").strip()
    text = SAYS.quantifier.sub("", text)
    text = SAYS.all_but.sub(r"\\reals \\setminus \\{\1\\}", text.strip())
    if (bound := SAYS.bound.match(text)) is not None:
        sign = ("<", r"\le", ">", r"\ge")[2 * bool(bound[1]) + bool(bound[2])]
        text = f"x {sign} {bound[3]}"
    return next((symbol for pattern, symbol in _NAMED_SETS if pattern.fullmatch(text)), text)


def _cases(match: re.Match[str]) -> str:
    """Return the rows of cases as a list: `value if condition`, or equations."""
    rows = [row.strip() for row in re.split(r"\\\\|\n", (match[1] or match[2] or "").strip(" \\")) if row.strip()]
    if not all(row.count("&") == 1 for row in rows):
        return ", ".join(row.replace("&", " ") for row in rows)
    pairs = (re.split(r"[,\s]*&\s*(?:\\(?:text|mbox|mathrm)\s*\{[^{}]*\}|if\b|for\b|when\b)?", row) for row in rows)
    return "; ".join(f"{value} \\text{{ if }} {condition.strip(' ,.;')}" for value, condition in pairs)


def one_spelling(text: str) -> str:
    """Return a text with one spelling of every symbol, and without the delimiters of formulas in brackets."""
    text = _RAISED_RUN.sub(lambda m: "^{" + m.group().translate(_RAISED) + "}", text)
    text = _LOWERED_RUN.sub(lambda m: "_{" + m.group().translate(_LOWERED) + "}", text)
    text = text.translate(_TRANSLATION).replace('\\"', " ")
    if not text.isascii():  # digits in circles and of other scripts, wide and styled letters
        text = "".join(c if c.isascii() else unicodedata.normalize("NFKC", c) for c in text).translate(_TRANSLATION)
        # NFKC leaves the digits of Arabic and Devanagari as they are.
        text = "".join(c if c.isascii() or not c.isdecimal() else str(unicodedata.decimal(c)) for c in text)
    return re.sub(
        r"(?<!\\)\\\((?P<a>.*?)(?<!\\)\\\)|(?<!\\)\\\[(?P<b>.*?)(?<!\\)\\\]",
        lambda m: m["a"] if m["a"] is not None else m["b"],
        _NOTHING_JOINED.sub("", text),
        flags=re.DOTALL,
    )


def _substituted(text: str, substitutions: Sequence[tuple[re.Pattern[str], Any]]) -> str:
    for pattern, replacement in substitutions:
        text = pattern.sub(replacement, text)
    return text


def _synonyms(text: str) -> str:
    if "\\" not in text:  # most answers: few of the spellings need to be looked for
        text = _substituted(text, _TYPED)
        if "\\" not in text:
            return text.replace("~", " ")
    text = _COMMAND.sub(lambda m: _RENAMED.get(m[1], m.group()), _SIZES.sub("", text))
    text = _RESIDUE.sub(r"\\text{ mod \1}", text) if "\\equiv" in text else text
    text = _contents(_FONTS, _substituted(text, _SYNONYMS), _font, between=" ")
    return re.sub(r"\\text\{\s*\}", " ", _contents(_TEXTS, text, _text))


def typed_thousands(text: str) -> str | None:
    """Read commas as thousands separators (`1,234,567`), or None if the text has none that could be."""
    joined = _TYPED_THOUSANDS.sub(lambda m: m[1] + m[2].replace(",", ""), text)
    return joined if joined != text else None
