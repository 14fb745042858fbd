r"""Cleaning: what an answer may be wrapped in, and the many spellings of one symbol. Text in, text out, linear time.

After `clean`, an answer holds no `$`, no `\left`, no spacing or font command, one spelling of fractions, percent
and degrees, and its thousands separators are gone where they cannot be anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gtpo.rewards.boxes import last_boxed, match_brace, without_operand_box
from gtpo.rewards.extract import ANSWER
from gtpo.rewards.text import words

_CHARACTERS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ",
    "∙": r"\cdot ", "÷": r"\div ", "⁄": "/", "∕": "/", "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "°": r"^\circ ",
    "º": r"^\circ ", "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "±": r"\pm ", "∓": r"\mp ",
    "⟨": r"\langle ", "⟩": r"\rangle ", "“": '"', "”": '"', "‘": "'", "’": "'", "′": "'", "…": r"\ldots ",
    "％": "%", "，": ",", "。": ".", "（": "(", "）": ")", "：": ":", "；": ";", "＝": "=", "＋": "+", "－": "-",
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "⅕": r"\frac{1}{5}", "⅛": r"\frac{1}{8}", "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}", "⅞": r"\frac{7}{8}",
    "⅙": r"\frac{1}{6}", "⅚": r"\frac{5}{6}", "∠": r"\angle ", "△": r"\triangle ", "∑": r"\sum ", "∫": r"\int ",
    "∏": r"\prod ", "€": r"\text{euro}", "£": r"\text{sterling}", "¥": r"\text{yen}", "₹": r"\text{rupee}",
    "¢": r"\text{ cents}", "∛": r"\sqrt[3]", "→": r"\to ", "∧": r"\land ", "∨": r"\lor ", "⌊": r"\lfloor ",
    "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ",
    "\u2009": r"\,", "\u202f": r"\,", "\u00a0": " ", "\u2002": " ", "\u2003": " ", "\u200b": "", "\ufeff": "",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "θ": r"\theta ", "λ": r"\lambda ",
    "μ": r"\mu ", "φ": r"\phi ", "ω": r"\omega ", "σ": r"\sigma ", "Δ": r"\Delta ", "ρ": r"\rho ",
}  # fmt: skip
_TRANSLATION = str.maketrans(_CHARACTERS)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿˣ", "0123456789+-nx")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_RAISED_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿˣ]+")
_LOWERED_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")

_SIZES = re.compile(r"\\(?:[bB]igg?[lrm]?|left|right|middle)(?![a-zA-Z])\s*(?:\.(?!\d))?")
_THOUSANDS = re.compile(r"(?<![\d.])([1-9]\d{0,2})((?:\s*(?:\{\s*,\s*\}(?:\\!)?|,?\s*\\!|\\,)\s*\d{3})+)(?!\d)")
_TYPED_THOUSANDS = re.compile(r"(?<![\d.,])([1-9]\d{0,2})((?:,\d{3})+)(?!\d|,\d)")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,])(?<![\d}] )([1-9]\d{0,2})((?: \d{3})+)(?![\d]| \d)")
_FONTS = re.compile(
    r"\\(?:mathrm|mathbf|mathit|mathsf|mathnormal|boldsymbol|bm|pmb|mathcal|mathscr|operatorname\*?)\s*\{"
)
_TEXTS = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|sc|up)?|mbox|hbox|emph|underline|textnormal|textcolor\{\w+\})\s*\{"
)
_REPEATING = re.compile(
    r"(?<![\d.])(?P<whole>\d*)\.(?P<fixed>\d*)(?:\\(?:overline|bar|dot)\s*\{?\s*(?P<bar>\d+)\s*\}?|\((?P<bracket>\d+)\)"
    r"|(?P<run>(?P<first>\d)(?P=first)+|(?P<block>\d{2,6}?)(?P=block)+)\s*(?:\.\.\.|\\l?dots))"
)
"""`0.1\\overline{6}`, `0.1(6)`, and `0.1666...`, whose last digits must repeat themselves."""
_RESIDUE = re.compile(r"\s*(?:\\bmod|\\mod|(?<![a-zA-Z\\])mod)(?![a-zA-Z])\s*\{?\s*(\w+)\s*\}?\s*$")
"""The modulus of a congruence, `x \\equiv 4 \\mod 5`: no operation."""
_STARRED = re.compile(r"(\*{1,3}|_{1,2})(?![*_])(.+?)(?<![*_])\1", re.DOTALL)
_RENAMED = {
    name: replacement
    for names, replacement in [
        ("dfrac tfrac cfrac", r"\frac"), ("leslant leqslant leqq leq", r"\le "), ("geslant geqslant geqq geq", r"\ge "),
        ("lt", "<"), ("gt", ">"), ("neq", r"\ne "), ("varnothing O", r"\emptyset "), ("R Reals", r"\reals "),
        ("thickapprox approxeq simeq cong", r"\approx "), ("degree degrees", r"^\circ "), ("lbrace", r"\{"),
        ("rbrace", r"\}"), ("langle", "("), ("rangle", ")"), ("backslash", r"\setminus "), ("colon ratio", ":"),
        ("arctg", r"\arctan "), ("imath", "i"), ("textpercent percent", "%"), ("textdollar", r"\$"),
        ("textpounds pounds", r"\text{sterling}"), ("texteuro euro", r"\text{euro}"), ("rightarrow", r"\to "),
        ("wedge land", r"\text{ and }"), ("vee lor", r"\text{ or }"), ("therefore because", " "),
        ("displaystyle textstyle scriptstyle limits nolimits nonumber hfill allowbreak strut centering bf rm it", " "),
    ]
    for name in names.split()
}  # fmt: skip
"""Commands with another name, and commands of layout, which are dropped."""
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_Substitutions = list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]]


def _repeating(match: re.Match[str]) -> str:
    period = match["bar"] or match["bracket"] or match["first"] or match["block"]
    return f"\\repeating{{{match['whole']}}}{{{match['fixed']}}}{{{period}}}"


_TYPED: _Substitutions = [
    (_REPEATING, _repeating),
    (re.compile(r"(?<=[\d)}])\s*(?:\\bmod|\\mod|mod)(?![a-zA-Z])\s*(?=[\d({\\-])"), r" \\bmod "),
    (re.compile("<=|=<"), r"\\le "),
    (re.compile(">=|=>"), r"\\ge "),
    (re.compile(r"\\not\s*=|!="), r"\\ne "),
    (re.compile("~="), r"\\approx "),
    (re.compile(r"(?<=,)\s*\.\.\."), r" \\ldots "),
    (re.compile(r"\\(?:pmod|pod)\s*(?:\{([^{}]*)\}|(\w+))"), r"\\text{ mod \1\2}"),
    (re.compile(r"\(\s*\\text\s*\{\s*mod\s*\}\s*(\w+)\s*\)"), r"\\text{ mod \1}"),
    (re.compile(r"(?:\\text\s*\{\s*)?\(\s*\\?mod\s+(\w+)\s*\)(?:\s*\})?"), r"\\text{ mod \1}"),
    (re.compile(r"(?i)(?<![a-z])(?:percent(?:age)?|pct\.?|per cent)(?![a-z])"), "%"),
]
"""What may be written without a backslash, or with one."""
_SYNONYMS: _Substitutions = [
    *_TYPED,
    (re.compile(r"(\\sqrt\s*(?:\[\s*\d+\s*\])?)\s*(\d+(?:\.\d+)?)(?![\d.])"), r"\1{\2}"),
    # `\\sqrt 15` and `√15`: TeX would take one digit, whoever writes it means the number.
    (re.compile(r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![a-zA-Z])|(?<=\d)\s*\\circ(?![a-zA-Z])"), r"^\\circ "),
    (re.compile(r"\{([^{}]{1,80})\\over(?![a-zA-Z])([^{}]{1,80})\}"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\text\s*\{\s*infinity\s*\}"), r"\\infty "),
    (re.compile(r"^\s*\\(?:Rightarrow|implies|Longrightarrow)(?![a-zA-Z])"), " "),
    (re.compile(r"\\(?:dots[cmiob]|hdots|cdots|dots)(?![a-zA-Z])"), r"\\ldots "),
    (re.compile(r"\\mathbb\s*(?:\{\s*R\s*\}|R)"), r"\\reals "),
    (re.compile(r"\\mathbb\s*\{?\s*([A-Z])\s*\}?"), r"\\mathbb{\1}"),
    (re.compile(r"\{([^{}]{1,40})\\choose(?![a-zA-Z])([^{}]{1,40})\}"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\text\s*\{\s*(%)\s*\}"), r"\1"),
    (re.compile(r"\\[vh]?phantom\s*(?:\{[^{}]*\}|.)"), " "),
    (re.compile(r"\\(?:hspace|vspace|label|tag|color|quad)\*?\s*\{[^{}]*\}"), " "),
    (re.compile(r"\\(?:quad|qquad|enspace|thinspace|medspace|thickspace)(?![a-zA-Z])|(?<!\\)\\[,;:! >]|~"), " "),
]
_PRICE = re.compile(r"-?\$\s?\d[\d,]*(?:\.\d+)?")
"""In a gold, one dollar sign before a number delimits no formula; what samples have before a number is any habit."""
_LEAD_IN = re.compile(
    r"^\*\*(?:final )?answer:?\*\*:?\s*"
    r"|^(?:so|thus|hence|therefore|finally|in total|total|altogether)\s*[,:]\s*(?=[-\d$\\])"
    r"|^(?:(?:so|thus|hence|therefore|then|and)\b,?\s*)?(?:the\s+)?(?:correct\s+|final\s+)*"
    r"(?:answer|result|solution|option|choice)"
    r"\s*(?:is|are|:|=)\s*:?\s*|^answer\s+(?=[\\\d(-])"
    r"|^(?:(?:so|thus|hence|therefore),?\s+)?(?:it(?:'s| is)|this is|that is|we (?:get|have|find))\s+(?:that\s+)?"
    r"(?=\$?[^\s=]{1,30}\s*=)"
    r"|^(?:because|since)\s+(?=[^\s=]{1,30}\s*(?:=|\\in(?![a-zA-Z])))",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"^\\text\{[^{}]{1,40}:\s*\}\s*(?=\S)|^(?:option|choice)\s+(?=\(?[A-Z]\)?$)"
    r"|^(?:the )?point\s+(?=\()",
    re.IGNORECASE,
)
# `x = k\pi, k \in \mathbb{Z}`: the clause says what the letter is, not what the answer is.
_QUANTIFIER = re.compile(
    r"[\s,;(]*(?:\\text\s*\{[\s,]*(?:for|where|with|any|all|an|integers?|\s)*\})?\s*"
    r"[a-z]\s*\\in\s*\\mathbb\{[ZN]\}\)?$|[\s,;(]*\\text\s*\{[\s,]*(?:for|where)[^{}]{0,40}integers?[^{}]{0,20}\}\s*[a-z]?\)?$"
)
_ALL_BUT = re.compile(
    r"^(?:the set of )?all reals?(?: numbers?)?(?: x)?,? (?:except|other than|but)(?: for)?(?: x ?=)? (-?[\d.]+)$"
)
_ABOUT = re.compile(
    r"^(?:approximately|approx\.?|about|roughly|exactly|only|just|\\approx|\\text\{\s*(?:about|approximately)\s*\})\s+",
    re.IGNORECASE,
)
_NAMED_SETS = [
    (re.compile(rf"(?:\\text\s*\{{\s*)?(?:{names})\s*\}}?", re.IGNORECASE), symbol)
    for names, symbol in [
        (r"(?:there (?:is|are) )?no (?:real )?solutions?|(?:the )?empty set", "\\emptyset"),
        (r"(?:the set of )?all reals?(?: numbers?)?(?: x)?", "\\reals"),
        (r"dne|does not exist", r"\text{does not exist}"),
    ]
]
"""Words for what has a symbol."""
_ENVIRONMENT = re.compile(
    r"\\begin\s*\{(?:align|equation|gather|aligned)\*?\}|\\end\s*\{(?:align|equation|gather|aligned)\*?\}"
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
    return f"\\text{{{_contents(_TEXTS, content, _text)}}}"


_NAMED_FUNCTIONS = words("sin cos tan log ln cot sec csc gcd lcm max min det")
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
    return f"\\{content} " if content in _NAMED_FUNCTIONS and not measured else f"\\text{{{content}}}"


def _undouble(text: str) -> str:
    r"""Undo the doubled backslashes of text that was escaped once too often: `\\frac{1}{2}`."""
    if "\\\\" not in text or re.search(r"(?<!\\)\\begin", text):
        return text
    return re.sub(r"\\\\(?=[a-zA-Z({\[|,;!%$]|\}(?!\}))", r"\\", text)


def unwrap_answer(text: str, gold: bool = False) -> str:
    r"""Take an answer out of answer tags, `\boxed`, math delimiters, markdown and "the answer is"."""
    text = text.strip()
    if "<answer>" in text:
        text = [text, *ANSWER.findall(text)][-1]
    if "\\boxed" in text or "\\fbox" in text:
        for _ in range(50):
            inside = without_operand_box(text) or last_boxed(text)
            if inside is None:
                break
            text = inside
        opened = re.fullmatch(r"\$?\\boxed\s*\{(.*)", text.strip(), re.DOTALL)
        if gold and opened is not None and match_brace(text, text.index("{")) < 0:
            text = opened[1]  # a gold whose last brace was lost with the rest of its solution
    text = text.strip().strip("`").strip().strip('"')
    starred = _STARRED.fullmatch(text)  # markdown's emphasis
    return starred[2] if starred and starred[1] not in starred[2] else text


_NOTHING_JOINED = re.compile(r"\s*\\cup\s*(?:\\emptyset|\\varnothing|\\\{\s*\\\})(?![a-zA-Z])")
"""A union with the empty set."""


def clean(text: str, gold: bool = False) -> str:
    """Return the answer in the one spelling that the reader understands."""
    text = text.replace("\x0crac", r"\frac")  # what `\f` of an unescaped string becomes
    text = _undouble(unwrap_answer(_undouble(text), gold))
    text = one_spelling(text)
    text = _ENVIRONMENT.sub(" ", text)
    text = _THOUSANDS.sub(lambda m: m[1] + re.sub(r"\D", "", m[2]), text)
    text = _SPACED_THOUSANDS.sub(lambda m: m[1] + m[2].replace(" ", ""), text)
    text = re.sub(r"(?<!\\)\$", r"\\$" if gold and _PRICE.fullmatch(text.strip()) else " ", text)
    text = _LEAD_IN.sub("", text.strip())
    text = _synonyms(text)
    text = re.sub(r"\s+", " ", text).strip()
    for _ in range(3):
        if text.startswith("{") and match_brace(text, 0) == len(text) - 1:
            text = text[1:-1].strip()
        text = (
            text.rstrip(" .,;:").removesuffix("\\\\").removesuffix("\\").strip() if not text.endswith("\\}") else text
        )
    for pattern in (_LABEL, _ABOUT, _QUANTIFIER):
        text = pattern.sub("", text)
    text = _ALL_BUT.sub(r"\\reals \\setminus \\{\1\\}", text.strip())
    return next((symbol for pattern, symbol in _NAMED_SETS if pattern.fullmatch(text)), text)


def one_spelling(text: str) -> str:
    """Return a text with one spelling of every symbol, and without the delimiters of formulas in brackets."""
    text = _RAISED_RUN.sub(lambda m: "^{" + m.group().translate(_RAISED) + "}", text)
    text = _LOWERED_RUN.sub(lambda m: "_{" + m.group().translate(_LOWERED) + "}", text)
    text = text.translate(_TRANSLATION).replace('\\"', " ")
    return re.sub(
        r"(?<!\\)\\\((?P<a>.*?)(?<!\\)\\\)|(?<!\\)\\\[(?P<b>.*?)(?<!\\)\\\]",
        lambda m: m["a"] if m["a"] is not None else m["b"],
        _NOTHING_JOINED.sub("", text),
        flags=re.DOTALL,
    )


def _substituted(text: str, substitutions: _Substitutions) -> str:
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
