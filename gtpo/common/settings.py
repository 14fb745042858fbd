"""What a command takes, declared once as a pydantic model: read from words, checked, explained and printed.

`gtpo eval` and `gtpo compare` have one level of options. `gtpo train` has a few of its own, and every key of its config
is a flag, `--section.key`. All use the one reader of words and the one maker of sentences that stand here.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from gtpo.common.errors import UserError, did_you_mean, raise_all
from gtpo.common.files import Lines

Model = TypeVar("Model", bound=BaseModel)
_TRUTH = ("true", "false")
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_WORDS: dict[Any, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path", list: "a list",
    dict: "a mapping",
}  # fmt: skip


def alternatives(annotation: Any) -> list[Any]:
    """Return the types that an annotation takes: the parts of a union, else the annotation itself."""
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        return [inner for part in get_args(annotation) for inner in alternatives(part)]
    return [annotation]


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model that an annotation (also `Section | None`) names, if it does."""
    kinds = (kind for kind in alternatives(annotation) if isinstance(kind, type))
    return next((kind for kind in kinds if issubclass(kind, BaseModel)), None)


def in_words(annotation: Any, rules: Iterable[Any] = ()) -> str:
    """Return in words which values an annotation takes beside None, e.g. "a number > 0"; rules: pydantic's bounds."""
    words = []
    for part in alternatives(annotation):
        origin, within = get_origin(part) or part, get_args(part)
        if origin is Literal:
            words.append(f"one of {', '.join(map(str, within))}")
        elif origin in (list, Sequence) and within:
            words.append(f"a list, each {in_words(within[0])}")
        elif isinstance(origin, type) and issubclass(origin, BaseModel):
            words.append(f"a mapping of {', '.join(origin.model_fields)}")
        elif origin is not NoneType:
            words.append(_WORDS.get(origin, getattr(origin, "__name__", str(origin))))
    limits = [(sign, getattr(rule, key, None)) for rule in rules for key, sign in _BOUNDS.items()]
    shown = [(sign, f"{limit:g}" if isinstance(limit, float) else limit) for sign, limit in limits if limit is not None]
    bounds = " and ".join(f"{sign} {limit}" for sign, limit in shown)
    return " ".join(filter(None, (" or ".join(dict.fromkeys(words)), bounds)))


JsonObject = Annotated[
    # int takes no NaN or Infinity, which are no JSON.
    dict[str, Any], BeforeValidator(lambda v: json.loads(v, parse_constant=int) if isinstance(v, str) else v)
]
"""A mapping, which a flag writes as JSON."""


class Key:
    """One key of a command or config. name: dotted, if it stands in a section."""

    def __init__(self, name: str, info: FieldInfo) -> None:
        self.name, self.info = name, info
        declared: Any = info.json_schema_extra
        # What else was declared of it (`option`).
        self.about: Mapping[str, Any] = declared if isinstance(declared, dict) else {}
        flag = name if "." in name else name.replace("_", "-")
        # As the user types them; the first one names the key in messages.
        self.flags: tuple[str, ...] = self.about.get("flags") or (f"--{flag}",)
        # The types that it takes: bool, int, float, str, Path, or a list of one of them; None if it may be unset.
        self.kinds = alternatives(info.annotation)
        # Whether it is a list: its flag takes several words, or commas.
        self.many = get_origin(self.kinds[0]) is list
        # Whether its flag, with one word each, may be given several times.
        self.repeatable = get_origin(self.kinds[0]) is Sequence
        # Whether its flag may stand without a value, for true.
        self.is_switch = bool in self.kinds
        words = get_args(get_args(self.kinds[0])[0] if self.many else self.kinds[0])
        # The words that it, or each value of it, may be, if they are listed.
        self.choices = tuple(word for word in words if isinstance(word, str))
        # The value without one; None if there is none.
        self.default = None if info.is_required() else info.get_default(call_default_factory=True)
        # What it means, in one line.
        self.doc = " ".join((info.description or "As in TRL.").split())

    @property
    def expects(self) -> str:
        """What the key takes, in words."""
        words = in_words(self.info.annotation, self.info.metadata)
        unit = f" {self.about['unit']}" if "unit" in self.about else ""
        return ("a JSON object" if get_origin(self.kinds[0]) is dict else words) + unit

    def sentence(self, place: str, value: Any) -> str:
        """Return what is wrong with a value, as one sentence that begins with the place where it was set."""
        # No other value is near a name: YAML reads off, no, on and yes as booleans.
        hint = did_you_mean(value, self.choices) if isinstance(value, str) else ""
        expects = self.expects
        if str(value).lower().strip("+-") in ("inf", "infinity", "nan"):
            expects = expects.replace("a number", "a finite number")
        return f"{place} must be {expects}; found {value!r}.{hint}"

    def checked(self, value: Any, place: str = "") -> Any:
        """Return a value in the key's type. UserError that begins with the place, or else with the flag."""
        kind: Any = self.info.annotation
        try:
            # pydantic would read true, which a flag without a value is, as 1.0.
            if isinstance(value, bool) and bool not in self.kinds and {int, float}.intersection(self.kinds):
                raise ValueError
            return TypeAdapter(Annotated[(kind, *self.info.metadata, None)]).validate_python(value)
        except ValueError:
            raise UserError(self.sentence(place or self.flags[0], value)) from None


def validate_yaml(model: type[Model], path: Path, values: dict[str, Any], lines: Lines | None = None) -> Model:
    """Return the model of a file's values. UserError that names the line and key of the first mistake."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        # pydantic puts "[key]" behind a key that is wrong itself.
        key = tuple(str(part) for part in first["loc"] if part != "[key]")
        line = next((f":{lines[key[:i]]}" for i in range(len(key), 0, -1) if key[:i] in lines), "") if lines else ""
        fault, after = first["msg"].removeprefix("Value error, "), f", found {first['input']!r:.60}."
        if first["type"] == "missing" or not key:  # what is wrong with all of them is no value
            after = "."
        elif first["type"] == "extra_forbidden":
            section: type[BaseModel] | None = model
            for part in key[:-1]:
                field = section.model_fields.get(part) if section else None
                section = section_of(field.annotation) if field else None
            fault, after = "no such key", f".{did_you_mean(key[-1], section.model_fields if section else ())}"
        raise UserError(f"{path}{line}: {'.'.join(key) or 'the file'}: {fault}{after}") from None


# -- words -------------------------------------------------------------------------------------------------------------


def _is_flag(word: str) -> bool:
    # -1 is a value.
    return bool(re.match(r"--\w|-[A-Za-z]$", word))


def dashed(flag: str) -> str:
    """Return a flag as it is typed."""
    return f"-{flag}" if len(flag) == 1 else f"--{flag}"


def _is_value(key: Key | None, find: Callable[[str], Key | None], word: str) -> bool:
    """Return whether a word behind a flag is its value."""
    if key is not None and key.is_switch:
        return word.lower() in _TRUTH
    # A value may begin with dashes (--serve '--max-model-len 4096'), unless it is a flag of this command.
    free = key is not None and not key.many and find(word.lstrip("-").partition("=")[0]) is None
    return free or not _is_flag(word)


# -- commands ----------------------------------------------------------------------------------------------------------


def option(default: Any, help: str, *flags: str, about: Mapping[str, Any] | None = None, **limits: Any) -> Any:
    """Declare an option. flags: if they are not --the-name; about: what else is to be known of it.

    In `about`, `unit` is named with the range, and `needs` says what to do if no value follows the flag.
    """
    further: Any = dict(about or {}) | ({"flags": flags} if flags else {})
    return Field(default, description=help, json_schema_extra=further, **limits)


class CommandSettings(BaseModel):
    """What one command takes. Raises UserError, a line for each mistake, that names the flag."""

    # Its help needs no validator, and `gtpo eval --help` is to be quick.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)

    COMMAND: ClassVar[str]
    """As it is typed: `gtpo eval`."""
    ARGUMENT: ClassVar[str]
    """The key that is typed without a flag; a list takes all such words."""
    USED_MOST: ClassVar[Sequence[tuple[str, str]]] = ()
    """Flags that the help names first, and their meanings, if they are not this command's own."""
    FIRST: ClassVar[Sequence[str]] = ()
    """Options of the first screen of the help, if it does not show all; --help-all does."""
    EXAMPLES: ClassVar[Sequence[str]] = ()
    """Commands that the help ends with."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise_all(map(self._sentence, error.errors()))
        self.check_together()

    @classmethod
    def _sentence(cls, error: Mapping[str, Any]) -> str:
        name = str(error["loc"][0])
        if error["type"] == "extra_forbidden":  # set from Python: words are checked before
            return f'{cls.COMMAND} has no option "{name}".{did_you_mean(name, cls.keys())}'
        key = cls.keys()[name]
        if error["type"] == "missing":
            return f"{cls.COMMAND} needs {name.upper()}; {cls.COMMAND} --help says what it may be"
        return key.sentence(name.upper() if name == cls.ARGUMENT else key.flags[0], error["input"])

    def check_together(self) -> None:
        """Check what more than one option decides. Raises UserError."""

    @classmethod
    def keys(cls) -> dict[str, Key]:
        """Return the options by name."""
        return {name: Key(name, info) for name, info in cls.model_fields.items()}

    @classmethod
    def split(
        cls, words: Iterable[str], others: Callable[[str], Key | None] = lambda flag: None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the words of a command line set: options by name, and flags that are not this command's own.

        others: the key of such a flag (without its dashes); one of no key has what follows it, as text or a list.

        Flags may stand anywhere, as `--key value` or `--key=value`. A repeated flag adds to a list, and replaces any
        other value. Raises UserError if a value is missing.
        """
        own = {flag.lstrip("-").replace("-", "_"): key for key in cls.keys().values() for flag in key.flags}

        def find(flag: str) -> Key | None:
            return own.get(flag.replace("-", "_")) or others(flag)

        arguments, values, further, queue = list[str](), dict[str, Any](), dict[str, Any](), list(words)
        while queue:
            word = queue.pop(0)
            if not _is_flag(word):
                arguments.append(word)
                continue
            typed, equals, inline = word.partition("=")
            flag = typed.lstrip("-")
            key = find(flag)
            taken = [inline] if equals else list(itertools.takewhile(functools.partial(_is_value, key, find), queue))
            if key is not None and not key.many:
                del taken[1:]
            if not equals:
                del queue[: len(taken)]
            if key is not None and not taken and not key.is_switch:
                raise UserError(f"{typed} needs a value: {key.about.get('needs', key.expects)}")
            mine = own.get(flag.replace("-", "_"))
            home, name = (further, flag) if mine is None else (values, mine.name)
            # The last one wins, also over another spelling of the same key: it is the last in order.
            before, home[name] = home.pop(name, []), taken[0] if len(taken) == 1 else taken or "true"
            if key is not None and key.many:
                text = ",".join(taken).strip()
                text = text[1:-1] if text.startswith("[") and text.endswith("]") else text  # a list as YAML writes it
                home[name] = before + [part.strip(" '\"") for part in text.split(",") if part.strip()]
            elif key is not None and key.repeatable:
                home[name] = before + taken
        if cls.keys()[cls.ARGUMENT].repeatable:
            values |= {cls.ARGUMENT: arguments} if arguments else {}
        elif len(arguments) > 1:
            raise UserError(
                f"{cls.COMMAND} takes one {cls.ARGUMENT.upper()}, found {', '.join(arguments)}; flags begin with two "
                f"dashes ({cls.COMMAND} --help lists them)"
            )
        elif arguments:
            values[cls.ARGUMENT] = arguments[0]
        return values, further

    @classmethod
    def from_words(cls, words: Iterable[str]) -> Self:
        """Return the settings that the words of a command line ask for. UserError for a flag that is not known."""
        values, unknown = cls.split(words)
        if unknown:
            flags = [flag for key in cls.keys().values() for flag in key.flags]
            lines = (f'unknown flag "{dashed(flag)}".{did_you_mean(dashed(flag), flags)}' for flag in unknown)
            raise UserError("\n      ".join((*lines, f"`{cls.COMMAND} --help` lists what it takes.")))
        return cls(**values)

    def filled(self, values: Mapping[str, Any]) -> Self:
        """Return settings in which what was not given is as in `values`; None there says nothing."""
        own = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{name: value for name, value in values.items() if value is not None} | own)


def either(words: Sequence[str]) -> str:
    """Return `a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


# -- help --------------------------------------------------------------------------------------------------------------


def help_text(settings: type[CommandSettings], about: str, formatter: Any, *, everything: bool = False) -> str:
    """Return the help of a command. about: what it does. everything: options beyond those of its first screen too.

    formatter: click's, which folds and aligns.
    """
    formatter.width = min(80, shutil.get_terminal_size().columns)
    argument = settings.keys()[settings.ARGUMENT]
    name = f"{settings.ARGUMENT.upper()}..." if argument.repeatable else settings.ARGUMENT.upper()
    formatter.write_usage(settings.COMMAND, f"{name if argument.info.is_required() else f'[{name}]'} [OPTIONS]")
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(inspect.cleandoc(about))
    groups: dict[str, list[tuple[str, str]]] = {"Used most": list(settings.USED_MOST)}
    first = () if everything else settings.FIRST
    for key in settings.keys().values():
        if first and key.name not in first:
            continue
        kind = next(get_origin(kind) or kind for kind in key.kinds if kind is not NoneType)
        value = {int: " N", float: " X", Path: " PATH", dict: " JSON"}.get(kind, " TEXT")
        term = (
            name if key.name == settings.ARGUMENT else ", ".join(reversed(key.flags)) + ("" if key.is_switch else value)
        )
        choices = f" One of {', '.join(key.choices)}." if key.choices else ""
        default = f"{key.default:g}" if isinstance(key.default, float) else str(key.default)
        default = f" [default: {default}]" if key.default not in (None, False, "", ()) else ""
        section = "Used most" if first else key.about.get("section", "Options")
        groups.setdefault(section, []).append((term, key.doc + choices + default))
    last = groups["Used most" if first else "Options" if "Options" in groups else "Output"]
    if settings.FIRST:
        count = len(settings.keys())
        last.append(("--help-all", f"Show all {count} options: sampling, scoring, servers, this machine, output."))
    last.append(("-h, --help", "Show this message and exit."))
    for title, terms in groups.items():
        if terms:
            with formatter.section(title):
                formatter.write_dl(terms, col_max=26)
    if settings.EXAMPLES:
        with formatter.section("Examples"):
            formatter.write("".join(f"  {example}\n" for example in settings.EXAMPLES))
    return str(formatter.getvalue())
