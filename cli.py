"""The command line: parses, prints, exits. torch and vllm are imported inside the commands only."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from rewards.support.errors import UserError


class App(typer.Typer):
    """A Typer app that turns a UserError into one message on stderr and exit code 2."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line."""
        try:
            return super().__call__(*args, **kwargs)
        except UserError as mistake:
            print(f"gtpo: {mistake}", file=sys.stderr)
            sys.exit(2)


app = App(
    name="gtpo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train language models on mathematics with GTPO and measure them against GRPO and SFT.",
)


@app.command(context_settings={"ignore_unknown_options": True})
def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG.yaml [--section.key VALUE]...", help="A YAML file: one of configs/ or your own."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved run and a memory forecast; train nothing.")
    ] = False,
    help_config: Annotated[
        bool, typer.Option("--help-config", help="Print every key: type, range, default, meaning.")
    ] = False,
    check_loss: Annotated[
        bool, typer.Option(help="Compare the fused loss with the reference on the first batch.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only warnings and the result.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Train a model from a config. Every key is also a flag, e.g. --training.learning_rate 2e-6.

    Lists take several words. Shortcuts: --model-name --dataset-name --dataset-subset (repeatable) --dataset-split
    --data-dir --cuda --run-name. The same command again resumes an interrupted run.
    """
    from gtpo.config import load_config
    from gtpo.config.flags import parse_flags

    if help_config:
        from gtpo.config.reference import print_reference

        print_reference()
        return
    path, overrides = parse_flags(words or [])
    if path is None:
        raise UserError("gtpo train needs a config file, e.g. gtpo train configs/demo/gtpo.yaml")
    config = load_config(path, overrides)
    if config.env.CUDA_VISIBLE_DEVICES is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = config.env.CUDA_VISIBLE_DEVICES  # before anything imports torch
    if dry_run:
        from gtpo.dry_run import dry_run as describe

        describe(config, json_output=json_output)
        return
    from gtpo.train import train as run

    run(config, quiet=quiet, json_output=json_output, check_loss=check_loss)


@app.command("eval")
def evaluate(model: Annotated[str, typer.Argument(help="Hub name, local folder or train run.")]) -> None:
    """Sample k completions a question and report pass@k and maj@k."""
    raise UserError("gtpo eval is not built yet")


@app.command()
def compare(runs: Annotated[list[str], typer.Argument(help="Run folders or names.")]) -> None:
    """Compare runs: paired differences with intervals."""
    raise UserError("gtpo compare is not built yet")


if __name__ == "__main__":
    app()
