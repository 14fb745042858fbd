"""The command line: parses, prints, exits. torch and vllm are imported inside the commands only."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand

import gtpo
from gtpo.common.errors import UserError, did_you_mean, explained
from gtpo.common.log import start_logging
from gtpo.common.options import Options
from gtpo.common.packages import require
from gtpo.evalkit.evaluation.settings import EXAMPLES, EvalSettings
from gtpo.evalkit.report.command import CompareSettings, run_compare

# Exit code of a training run that collapsed and was stopped.
COLLAPSED = 4


class App(typer.Typer):
    """A Typer app that turns a UserError into one message on stderr and exit code 2."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line."""
        with explained():
            return super().__call__(*args, **kwargs)


app = App(
    name="gtpo",
    no_args_is_help=True,
    # rich's help takes longer to import than the rest of --help together.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"gtpo {gtpo.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train language models on mathematics with GTPO and measure them against GRPO and SFT."""


class _Train(TyperCommand):
    """`gtpo train`, whose help begins with the keys that are used most; they are parsed with all others."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the keys, then the options."""
        with formatter.section("Used most"):
            formatter.write_dl(USED_MOST)
        super().format_options(ctx, formatter)


USED_MOST = (
    ("--model NAME", "Hub name, model folder or train run."),
    ("--data NAME", "gsm8k, math, arithmetic, or a .jsonl or .parquet file."),
    ("--method NAME", "gtpo (default), grpo or sft."),
    ("--run-name NAME", "The run's folder is results/train/NAME."),
    ("--max-tokens N", "Longest completion, training.max_completion_length."),
    ("--training.max_steps N", "Optimizer steps; --help-config lists every other key."),
)


@app.command(context_settings={"ignore_unknown_options": True}, cls=_Train)
def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG [--section.key VALUE]...",
            help="A YAML file, or the name of a config that comes with gtpo (gtpo configs lists them).",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run and a memory forecast (--verbose: every key).")
    ] = False,
    help_config: Annotated[
        bool, typer.Option("--help-config", help="Print every key: type, range, default, meaning.")
    ] = False,
    check_loss: Annotated[
        bool, typer.Option("--check-loss", help="Compare the fused loss with the reference on the first batch.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only warnings and errors on stderr.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="More detail on stderr, also from the libraries.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Train a model from a config, or from --model NAME --data gsm8k --method gtpo and default settings.

    Every key is also a flag, e.g. --training.learning_rate 2e-6; lists take several words. The same command again
    resumes an interrupted run.
    """
    from gtpo.config import load_config
    from gtpo.config.document import START, from_flags, parse_flags
    from gtpo.config.resolve import launched_processes

    if quiet and verbose:
        raise UserError("--quiet and --verbose exclude each other")
    start_logging("quiet" if quiet else "verbose" if verbose else "normal")
    if help_config:
        from gtpo.config.keys import print_reference

        print_reference()
        return
    path, overrides = parse_flags(words or [])
    overrides = overrides if path is not None else from_flags(overrides)
    config = load_config(path or START, overrides)
    if check_loss and config.method != "gtpo":
        raise UserError(
            f"--check-loss compares GTPO's fused loss with its reference; method {config.method} has neither"
        )
    require("gtpo train", "torch", "transformers", "trl", "peft", "datasets", "accelerate", extra="train")
    if dry_run:
        from gtpo.dry_run.forecast import dry_run as describe
        from gtpo.train.environment import quiet_libraries
        from gtpo.train.trainers import trainer_arguments

        quiet_libraries()
        trainer_arguments(config, Path("results"), "float32")  # what TRL would refuse
        describe(config, overrides, json_output=json_output, verbose=verbose)
        return
    from gtpo.runs.train_run import TrainFolder
    from gtpo.train.command import train as run

    scorer: Any = None
    if config.training.eval_steps is not None:
        from gtpo.evalkit.evaluation import summary

        scorer = summary.score_held_out
    folder = run(config, json_output=json_output, check_loss=check_loss, score_held_out=scorer)
    code = COLLAPSED if TrainFolder(folder).run().get("status") == "collapsed" else 0
    if launched_processes() > 1:
        from gtpo.train.environment import end_process

        end_process(code)
    raise typer.Exit(code)


def _declared(settings: type[Options], run: Callable[[Any], int | None]) -> Callable[..., None]:
    """Return a command whose parameters, as Typer reads them, are the options that `settings` declares."""

    def command(context: typer.Context, **options: Any) -> None:
        sources = {name: context.get_parameter_source(name) for name in options}
        given = {name: options[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}
        if code := run(settings(**given)):
            raise typer.Exit(code)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("context", kind, annotation=typer.Context)]
    for name, option in settings.options.items():
        help = f"{option.help} One of {', '.join(option.choices)}." if option.choices else option.help
        required = option.default is ...
        taken: Any = option.type
        if option.choices or option.is_object:
            taken = str if option.default is not None else str | None
        elif taken in (Sequence[str], Sequence[str] | None):
            taken = list[str] if required else list[str] | None
        if name == settings.ARGUMENT:
            info: Any = typer.Argument(help=help)
        elif number := next((kind for kind in (int, float) if kind in (taken, *get_args(taken))), None):
            # Typer's own parser answers in the words of pydantic.
            info = typer.Option(*option.flags, help=help, metavar="N", parser=_number_of(option.flags[0], number))
        else:
            info = typer.Option(*option.flags, help=help)
        default = inspect.Parameter.empty if required else option.default
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=Annotated[taken, info]))
    command.__doc__ = run.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _number_of(flag: str, kind: type[int] | type[float]) -> Callable[[str], float]:
    """Return what reads the number of an option. UserError that names the flag."""

    def number(text: Any) -> float:
        try:
            return kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise UserError(f'{flag} must be {what}, found "{text}"') from None

    return number


def _evaluate(settings: EvalSettings) -> int:
    """Sample completions and report pass@k and maj@k for every k, exactly.

    The same command again resumes an interrupted run; a larger --k samples only what is missing.
    """
    from gtpo.evalkit.evaluation.command import run_eval

    return _evaluate_with_base(settings) if settings.with_base else run_eval(settings)


def _evaluate_with_base(settings: EvalSettings) -> int:
    from gtpo.evalkit.engines.model_ref import resolve_model
    from gtpo.evalkit.evaluation.command import run_eval
    from gtpo.runs.train_run import RESULTS, find_train_run

    train = find_train_run(settings.model or "")
    if train is None:
        raise UserError(f"--with-base compares a train run with what it started from, and {settings.model} is none")
    if (base := train.began_from()) is None:
        raise UserError(f"--with-base: {train.name} built its model itself, and what it started from is not stored")
    resolve_model(base)  # before anything is sampled: is it there?
    out = settings.out or RESULTS / "eval" / train.root.name
    base_out = out.with_name(f"{out.name}-base")
    given = {name: getattr(settings, name) for name in settings.given - {"checkpoint"}}
    as_run = given | {"model": base, "like": str(out), "out": base_out}
    for evaluation in (settings.filled({"out": out}), EvalSettings(**as_run)):
        if code := run_eval(evaluation, summary=False):
            return code
    runs = [str(base_out), str(out)]
    shown = "json" if settings.json_output else "table"
    return run_compare(CompareSettings(runs=runs, baseline=runs[0], group_by="none", format=shown), runs)


def _compare(settings: CompareSettings) -> int:
    """Compare methods: paired differences with intervals, figures, and a page to look into any completion.

    Runs that differ only in their training seed are one method. Files of completions are scored first, as
    `gtpo eval --completions` does. Exit code 5 if --fail-if-worse fails, 6 if training is not known.
    """
    scored = {}
    for word, (name, path) in settings.recorded().items():
        # Here, not above: runs that are scored are compared without the verifier.
        from gtpo.evalkit.evaluation.command import run_eval
        from gtpo.runs.train_run import RESULTS

        given = {} if settings.fields is None else {"fields": settings.fields}
        evaluation = EvalSettings(completions=path, out=RESULTS / "eval" / name, **given)
        if code := run_eval(evaluation, summary=False):
            return code
        scored[word] = str(evaluation.out)
    return run_compare(settings, [scored.get(word, word) for word in settings.runs])


class _Evaluate(TyperCommand):
    """`gtpo eval`, whose help has its options in groups, and three examples."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group."""
        helps = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        helps = {name: record for name, record in helps.items() if record is not None}
        for title in dict.fromkeys(option.about["section"] for option in EvalSettings.options.values()):
            with formatter.section(title):
                names = [name for name, option in EvalSettings.options.items() if option.about["section"] == title]
                formatter.write_dl([helps.pop(name) for name in names])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, a line each."""
        with formatter.section("Examples"):
            for line in EXAMPLES:
                formatter.write(f"  {line}\n")


class _Compare(TyperCommand):
    """`gtpo compare`, in which --fail-if-worse may stand without a number: 0."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Put in the number."""
        flag = "--fail-if-worse"
        bare = [i for i, word in enumerate(args) if word == flag and not _number("".join(args[i + 1 : i + 2]))]
        for i in reversed(bare):
            args[i] = f"{flag}=0"
        return super().parse_args(ctx, args)


def _number(word: str) -> bool:
    return bool(re.fullmatch(r"-?\d+(\.\d*)?|-?\.\d+", word))


app.command("eval", cls=_Evaluate)(_declared(EvalSettings, _evaluate))
app.command("compare", cls=_Compare)(_declared(CompareSettings, _compare))


@app.command()
def view(
    runs: Annotated[list[str] | None, typer.Argument(help="Run folders or names; default: all under results/.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any that is free.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Follow runs on a local page: curves, the last rollout token by token, evaluated samples.

    Prints the page's address, which only this machine can open. Reads run folders and changes nothing.
    """
    from gtpo.evalkit.view import run_view

    run_view(runs or [], port=port, open_browser=open_browser)


@app.command()
def demo() -> None:
    """Train a small base model, then SFT, GRPO and GTPO from it; evaluate and compare. About 13 minutes on a CPU core.

    Needs no GPU and no data. Prints each command before it runs. Results go to ./results; a second call continues where
    the first one stopped.
    """
    from gtpo.demo import run_demo

    code = run_demo([sys.executable, "-m", "gtpo"])
    if code:
        raise typer.Exit(code)


@app.command()
def doctor(
    out: Annotated[Path | None, typer.Option(help="Also write the report to this file, as JSON.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as JSON on stdout.")] = False,
) -> None:
    """Describe this machine: versions, devices, what gtpo can do here; and check the loss on it against float64.

    Exit code 1 if the loss or a gradient is wrong.
    """
    from gtpo.doctor import run_doctor

    start_logging()
    if not run_doctor(out=out, json_output=json_output):
        raise typer.Exit(1)


@app.command()
def configs(
    name: Annotated[
        str | None, typer.Argument(help="A config, e.g. accelerate/fsdp2, or a folder of them, e.g. verl.")
    ] = None,
) -> None:
    """List the configs that come with gtpo, or print the path of one of them, or of a folder.

    For programs that need a file:
    accelerate launch --config_file "$(gtpo configs accelerate/ddp)" -m gtpo train demo/gtpo
    """
    from gtpo.config.document import CONFIGS, TABLE, config_folders, config_names, find_config

    if name is None:
        for folder, line in config_folders().items():
            print(f"{folder}: {line}")
            print("\n".join(f"  {known}" for known in config_names() if known.startswith(f"{folder}/")))
        return
    folders = config_folders()
    path = CONFIGS / name if name in folders else find_config(name)
    if path is None:
        raise UserError(f"gtpo configs {name}: there is none.{did_you_mean(name, [*config_names(), *folders])}")
    print(path if path.exists() else path.with_name(TABLE))
