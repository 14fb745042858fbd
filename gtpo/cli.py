"""The command line: parses, prints, exits. torch and vllm are imported inside the commands only."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import gtpo
from gtpo.common.errors import UserError, did_you_mean, explained
from gtpo.common.files import check_writable
from gtpo.common.log import start_logging
from gtpo.common.packages import require

if TYPE_CHECKING:
    from gtpo.common.settings import CommandSettings
    from gtpo.evalkit.evaluation.settings import EvalSettings

# Exit code of a training run that collapsed and was stopped.
COLLAPSED = 4


class App(typer.Typer):
    """A Typer app that turns a UserError into one message on stderr and exit code 2."""

    __call__ = explained()(typer.Typer.__call__)


app = App(
    name="gtpo",
    no_args_is_help=True,
    # rich's help takes longer to import than the rest of --help together.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gtpo {gtpo.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train language models on mathematics with GTPO and measure them against GRPO and SFT."""


# These read their words by their own declarations (`gtpo.common.settings`), --help included.
_BY_DECLARATION: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"ignore_unknown_options": True, "allow_extra_args": True},
}


def _words(context: typer.Context, command: Callable[..., None], settings: type[CommandSettings]) -> list[str]:
    """Return the words of a command; after its help, if that is what they ask for, exit."""
    if {"-h", "--help", "--help-all"}.intersection(context.args):
        from gtpo.common.settings import help_text

        everything, formatter = "--help-all" in context.args, context.make_formatter()
        print(help_text(settings, command.__doc__ or "", formatter, everything=everything), end="")
        raise typer.Exit
    return context.args


@app.command(**_BY_DECLARATION)
def train(context: typer.Context) -> None:
    """Train a model from a config, or from --model NAME --data gsm8k --method gtpo and default settings.

    Every key is also a flag, e.g. --training.learning_rate 2e-6; lists take several words. The same command again
    resumes an interrupted run.
    """
    from gtpo.options import START, TrainOptions, from_flags, read_command

    options, overrides = read_command(_words(context, train, TrainOptions))
    from gtpo.config.load import launched_processes, load_config

    start_logging(quiet=options.quiet, verbose=options.verbose)
    if options.help_config:
        from gtpo.config.schema import print_reference

        print_reference()
        return
    flags = overrides if options.config else from_flags(overrides)
    config = load_config(options.config or START, flags, world_size=options.processes)
    require("gtpo train", "torch", "transformers", "trl", "peft", "datasets", "accelerate", extra="train")
    if options.dry_run:
        from gtpo.dry_run import dry_run as describe
        from gtpo.train.environment import quiet_libraries
        from gtpo.train.session import trainer_arguments

        quiet_libraries()
        # What TRL would refuse of the batch of all processes. It would also wait for the others of a launcher.
        checked = config.model_copy(deep=True)
        checked.training.per_device_train_batch_size *= options.processes or launched_processes()
        launcher = {name: os.environ.pop(name) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK") if name in os.environ}
        trainer_arguments(checked, Path("results"), "float32")
        os.environ.update(launcher)
        how: Any = {"verbose": options.verbose, "processes": options.processes, "shard": options.shard}
        describe(config, overrides, json_output=options.json_output, **how)
        return
    from gtpo.runs.train_run import TrainFolder
    from gtpo.train.command import train as run

    scorer: Any = None
    if config.training.eval_steps is not None:
        from gtpo.evalkit.evaluation import summary

        scorer = summary.score_held_out
    folder = run(config, json_output=options.json_output, score_held_out=scorer)
    code = COLLAPSED if TrainFolder(folder).collapsed else 0
    if launched_processes() > 1:
        from gtpo.train.environment import end_process

        end_process(code)
    raise typer.Exit(code)


@app.command("eval", **_BY_DECLARATION)
def evaluate(context: typer.Context) -> None:
    """Sample completions and report pass@k and maj@k for every k, exactly.

    The same command again resumes an interrupted run; a larger --k samples only what is missing.
    """
    from gtpo.evalkit.evaluation.settings import EvalSettings

    settings = EvalSettings.from_words(_words(context, evaluate, EvalSettings))
    from gtpo.evalkit.evaluation.command import run_eval

    raise typer.Exit(_evaluate_with_base(settings) if settings.with_base else run_eval(settings))


def _evaluate_with_base(settings: EvalSettings) -> int:
    from gtpo.evalkit.engines.model_ref import resolve_model
    from gtpo.evalkit.evaluation.command import run_eval
    from gtpo.evalkit.report.command import CompareSettings, run_compare
    from gtpo.runs.train_run import RESULTS, find_train_run

    train = find_train_run(settings.model or "")
    if train is None:
        raise UserError(f"--with-base compares a train run with what it started from, and {settings.model} is none")
    if (base := train.began_from()) is None:
        raise UserError(f"--with-base: {train.name} built its model itself, and what it started from is not stored")
    resolve_model(base)  # before anything is sampled: is it there?
    out = settings.out or RESULTS / "eval" / train.root.name
    base_out = out.with_name(f"{out.name}-base")
    # --like says how the run was asked and sampled, also what its protocol or its model's recommendation came to.
    own = {name: getattr(settings, name) for name in settings.model_fields_set - {"checkpoint", "protocol", "sampling"}}
    as_run = type(settings)(**own | {"model": base, "like": str(out), "out": base_out})
    for evaluation in (settings.filled({"out": out}), as_run):
        if code := run_eval(evaluation, summary=False):
            return code
    runs = [str(base_out), str(out)]
    form = "json" if settings.json_output else "table"
    return run_compare(CompareSettings(runs=runs, baseline=runs[0], group_by="none", format=form))


@app.command(**_BY_DECLARATION)
def compare(context: typer.Context) -> None:
    """Compare methods: paired differences with intervals, figures, and a page to look into any completion.

    Runs that differ only in their training seed are one method. Files of completions are scored first, as
    `gtpo eval --completions` does. Exit codes of --fail-if-worse: 5 shown to be worse, 6 not known.
    """
    from gtpo.evalkit.report.command import CompareSettings, run_compare

    settings, names = CompareSettings.from_words(_words(context, compare, CompareSettings)), dict[str, str]()
    if recorded := settings.recorded():
        # They import the verifier, which a comparison of runs does without.
        from gtpo.evalkit.evaluation.command import run_eval
        from gtpo.evalkit.evaluation.recorded import run_folder
        from gtpo.evalkit.evaluation.settings import EvalSettings
        from gtpo.runs.train_run import RESULTS

        further = {} if settings.fields is None else {"fields": settings.fields}
        for word, (name, path) in recorded.items():
            out = run_folder(path) if str(path) == word else RESULTS / "eval" / name
            evaluation = EvalSettings(completions=path, out=out, **further)
            if code := run_eval(evaluation, summary=False):
                raise typer.Exit(code)
            names[word] = str(evaluation.out)
    raise typer.Exit(run_compare(settings, names))


@app.command(**_BY_DECLARATION)
def plan(context: typer.Context) -> None:
    """Say what a comparison will be able to show: power and cost by questions, samples and training seeds.

    From a pilot of two methods, or without one from published experiments (--accuracy 0.4 --seed-sd 2).
    """
    from gtpo.evalkit.report.command import PlanSettings

    settings = PlanSettings.from_words(_words(context, plan, PlanSettings))
    from gtpo.evalkit.report.planning import run_plan

    raise typer.Exit(run_plan(settings))


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

    raise typer.Exit(run_demo([sys.executable, "-m", "gtpo"]))


@app.command()
def doctor(
    out: Annotated[Path | None, typer.Option(help="Also write the report to this file, as JSON.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as JSON on stdout.")] = False,
    gpu: Annotated[
        bool,
        typer.Option("--gpu", help="Try what real runs do on the GPU too, in about eight minutes; on a CPU in small."),
    ] = False,
) -> None:
    """Describe this machine: versions, devices, what gtpo can do here; and check the loss on it against float64.

    Exit code 1 if the loss, a gradient or a path that --gpu tries is wrong.
    """
    from gtpo.doctor import run_doctor

    start_logging()
    raise typer.Exit(0 if run_doctor(out=out, json_output=json_output, gpu=gpu) else 1)


@app.command()
def examples(folder: Annotated[Path, typer.Argument(help="Where to write them.")] = Path("examples")) -> None:
    """Write the examples that come with gtpo: completions, a benchmark, a reward, a TRL script, a notebook."""
    package = Path(gtpo.__file__).parent
    source = next(filter(Path.is_dir, (package / "examples", package.parent / "examples")))
    files = {folder / file.name: file.read_bytes() for file in sorted(filter(Path.is_file, source.iterdir()))}
    check_writable("gtpo examples", folder, folder=True)
    for file, content in files.items():
        if file.exists() and file.read_bytes() != content:
            raise UserError(f"gtpo examples: {file} is there already and holds something else; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        file.write_bytes(content)
    before, after = (shlex.quote(str(folder / name)) for name in ("before.jsonl", "after.jsonl"))
    print(f"{len(files)} files in {folder}/; next: gtpo compare {before} {after}")


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
    from gtpo.common.files import read_yaml
    from gtpo.config.load import CONFIGS, TABLE, config_names, find_config

    folders, _ = read_yaml(CONFIGS / "folders.yaml")
    if name is None:
        for folder, line in folders.items():
            print(f"{folder}: {line}")
            print("\n".join(f"  {known}" for known in config_names() if known.startswith(f"{folder}/")))
        return
    path = CONFIGS / name if name in folders else find_config(name)
    if path is None:
        raise UserError(f"gtpo configs {name}: there is none.{did_you_mean(name, [*config_names(), *folders])}")
    print(path if path.exists() else path.with_name(TABLE))
