"""Every command line of gtpo that is printed or shipped passes the check of its arguments.

Read are README, docs, configs, examples and the Makefile: blocks of shell, code within a line, comments that show a
command, and the Slurm files. Nothing is started: a command ends where its arguments have been checked.

What cannot be checked here, and why:
    that files, runs and models exist    they are the reader's: files are made empty, a config that is not ours is ours
    $VARIABLE                            set by whoever calls the script; of a loop the first value is taken
    "$@"                                 of a Slurm file what the lines with sbatch give it; of the Makefile nothing
    what accelerate, torchrun, sbatch and verl take themselves    theirs (test_launch.py has the launchers of Slurm)
    docs/cli.md, docs/llms.txt           usage and summaries, made from the parser itself
    docs/troubleshooting.md              wrong on purpose: run_blocks.py runs them and reads what they say
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from trl import GRPOConfig, SFTConfig

from gtpo import GTPOConfig, cli
from gtpo.common.errors import UserError
from gtpo.config import load
from gtpo.config.load import checked, fields_of

ROOT = Path(__file__).resolve().parents[2]
NOT_READ = {"docs/cli.md", "docs/llms.txt", "docs/troubleshooting.md"}
COMMANDS = {command.name or command.callback.__name__ for command in cli.app.registered_commands}  # type: ignore[union-attr]
FENCE = re.compile(r"^(```+)(\w*)[^\n]*\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
OUR_CONFIG = "demo/gtpo"
# Stands for "$@".
ARGUMENTS = "ARGUMENTS"


def places() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
    for folder, kinds in (
        ("docs", ("md",)),
        ("configs", ("md", "yaml", "sbatch")),
        ("examples", ("md", "yaml", "py", "sh")),
    ):
        found += [path for kind in kinds for path in sorted((ROOT / folder).rglob(f"*.{kind}"))]
    return [path for path in found if path.relative_to(ROOT).as_posix() not in NOT_READ]


def shell_of(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield (shell, is a mention) of a file: a mention within a sentence may leave out what is not its subject."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        for _, language, block in FENCE.findall(text):
            if language in ("bash", "sh", "console", "shell"):
                yield block, False
        text = FENCE.sub("", text)
    elif path.suffix == ".sbatch" or path.name == "Makefile":
        yield text, False
        text = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    if path.suffix != ".md":  # a comment or docstring that is a command
        joined = re.sub(r"\\\n#?\s*", " ", text)
        yield (
            "\n".join(
                line.lstrip("# ") for line in joined.splitlines() if re.match(r"# ?(gtpo|sbatch) |#? {2,}\S", line)
            ),
            False,
        )
    for span in re.findall(r"(`+)(.+?)\1", re.sub(r"\s*\n\s*", " ", text)):
        yield span[1], True


def simple_commands(shell: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of gtpo in a text of shell, those within $( ) included."""
    shell = re.sub(r"\\\n", " ", shell).replace("$$", "$")
    simple = dict(re.findall(r"^(\w+) :?= (.*)$", shell, re.MULTILINE))  # of a Makefile
    for _ in range(2):
        shell = re.sub(r"\$\((\w+)\)", lambda name: simple.get(name[1], name[1]), shell)
    loops = dict(re.findall(r"\bfor (\w+) in (\w\S*)", shell))
    for line in shell.splitlines():
        line, inner = re.sub(r"\$\(gtpo configs ([^()]*)\)", r"PATH/\1", line), re.findall(r"\$\((gtpo [^()]*)\)", line)
        while line != (line := re.sub(r"\$\([^()]*\)", "RUN", line)):  # $(filter ...), $(call ...)
            pass
        line = re.sub(r'"?\$@"?', ARGUMENTS, line)
        line = re.sub(r"\$\{?(\w+)[^}\s]*\}|\$(\w+)", lambda name: loops.get(name[1] or name[2], "1").strip(";"), line)
        for text in (line, *inner):
            lexer = shlex.shlex(text.strip().lstrip("@"), posix=True, punctuation_chars=";&|()<>")
            lexer.whitespace_split = True
            try:
                words = list(lexer)
            except ValueError:  # an apostrophe: prose
                continue
            command: list[str] = []
            for word in (*words, ";"):
                if word and set(word) <= set(";&|()<>"):
                    yield from gtpo_words(command)
                    # Behind a redirection stands a file, which may be a command's name.
                    command = [] if word[0] not in "<>" else ["to"]
                else:
                    command.append(word)


def slurm(script: str) -> str:
    """Return the text of a Slurm file without its comments."""
    text = (ROOT / "configs" / f"{script.removeprefix('PATH/')}.sbatch").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def gtpo_words(words: list[str]) -> Iterator[list[str]]:
    """Yield what follows gtpo, if a command calls it: `srun gtpo eval ...`, `torchrun ... -m gtpo train ...`."""
    if words[:1] == ["sbatch"]:
        script = next((word for word in words if word.startswith("PATH/slurm/")), None)
        if script is not None:
            (template,) = (line for line in simple_commands(slurm(script)) if ARGUMENTS in line)
            at = template.index(ARGUMENTS)
            yield [*template[:at], *words[words.index(script) + 1 :], *template[at + 1 :]]
        return
    for at, word in enumerate(words[:-1]):
        if (word == "gtpo" or word.endswith("/gtpo")) and (words[at + 1] in COMMANDS or words[at + 1].startswith("-")):
            yield words[at + 1 :]
            return


def completed(words: list[str], mention: bool) -> list[str]:
    """Return a command with values in place of words that stand for them; a mention with what it leaves out."""
    name, *rest = [word.removesuffix("...") or "..." for word in words if word] if "..." in " ".join(words) else words
    shown = " ".join(rest)
    if "[" in shown and name in ("view", "train", "eval"):
        rest = re.sub(r"\[[^\]]*\]", "", shown).split()
    rest = [{"METHOD": "gtpo", "DATA": "gsm8k"}.get(word, word) for word in rest if word not in ("...", ARGUMENTS)]
    if name == "train":
        ours = re.compile(r"CONFIG|.*\.ya?ml|paper/llama-gsm8k-1")
        rest = [OUR_CONFIG if ours.fullmatch(word) and not (at and rest[at - 1].startswith("--")) else word
                for at, word in enumerate(rest)]  # fmt: skip
    if mention:
        subject = {"eval": ["MODEL"], "train": [OUR_CONFIG], "compare": ["RUN"]}.get(name, [])
        rest = [*subject, *rest] if not rest or rest[0].startswith("-") else rest
        told = ("-b", "--benchmarks", "--like", "--list", "--check", "--rescore", "--completions")
        if name == "eval" and not any(word in told for word in rest):
            rest += ["--benchmarks", "gsm8k"]
    return [name, *rest]


LINES = list(
    dict.fromkeys(
        (path.relative_to(ROOT).as_posix(), tuple(words), mention)
        for path in places()
        for shell, mention in shell_of(path)
        for words in simple_commands(shell)
        if not (path.suffix == ".sbatch" and ARGUMENTS in words)
    )
)


class ArgumentsAreRight(Exception):
    """The check of arguments is over."""


def check(words: list[str], folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Run the check of a command's arguments in a folder. Raises what a mistake in them raises."""

    def end(*args: object, **kwargs: object) -> int:
        raise ArgumentsAreRight

    # `gtpo train` has read its config and flags when it looks for the packages that training needs.
    for place in ("cli.require", "evalkit.report.command.run_compare", "cli._evaluate_with_base",
                  "evalkit.report.planning.run_plan", "evalkit.evaluation.command.run_eval", "evalkit.view.run_view",
                  "demo.run_demo", "doctor.run_doctor"):  # fmt: skip
        patch.setattr(f"gtpo.{place}", end)
    configs: list[Any] = []
    plain = load.load_config

    def kept(*args: Any, **kwargs: Any) -> Any:
        configs.append(plain(*args, **kwargs))
        return configs[-1]

    patch.setattr(load, "load_config", kept)
    patch.chdir(folder)
    for word in words:
        file = Path(word.partition("=")[2] or word)
        if file.suffix in (".jsonl", ".parquet") and not file.is_absolute():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text('{"id": "1", "problem": "1 + 1?", "answer": "2"}\n')
    with contextlib.suppress(ArgumentsAreRight):
        typer.main.get_command(cli.app).main(args=words, prog_name="gtpo", standalone_mode=False)
    for found in configs:  # TRL's own settings, which gtpo train checks when it has imported TRL
        kind = {"gtpo": GTPOConfig, "grpo": GRPOConfig, "sft": SFTConfig}[found.method]
        known = fields_of(kind) | {"optimizer": str, "warmup_ratio": float}
        checked(found, "training", known, kind.__name__, {})


def test_the_lines_are_found() -> None:
    """As many of each command as stand there at least, in each kind of place: a parser that finds none would pass."""
    by_command = {name: sum(words[0] == name for _, words, _ in LINES) for name in COMMANDS}
    assert by_command["train"] > 25 < by_command["eval"], by_command
    assert by_command["compare"] > 12, by_command
    assert min(by_command[name] for name in ("view", "doctor", "demo", "configs")) > 0, by_command
    slurm_lines = {place: words for place, words, _ in LINES if place.endswith(".sbatch") and words[0] != "configs"}
    assert slurm_lines["configs/slurm/eval.sbatch"][-2:] == ("--serve", "--data-parallel-size 1")


@pytest.mark.parametrize(
    ("place", "words", "mention"), LINES, ids=[f"{place}:{' '.join(words)}"[:120] for place, words, _ in LINES]
)
def test_its_arguments_are_right(
    place: str, words: tuple[str, ...], mention: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(completed(list(words), mention), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "words",
    ["eval MODEL -b gsm8k --serve --port=8", "eval MODEL -b gsm8k --kk 8", "train demo/gtpo --training.lr 1",
     "train --data gsm8k", "compare", "compare RUN --margin 0", "doctor --gpus", "view --port many"],
)  # fmt: skip
def test_a_wrong_line_is_seen(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((UserError, typer.Exit, SystemExit, Exception)) as wrong:
        check(words.split(), tmp_path, monkeypatch)
    assert not isinstance(wrong.value, ArgumentsAreRight)
