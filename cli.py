"""The command line: parses, prints, exits. torch and vllm are imported inside the commands only."""

from __future__ import annotations

import os
import sys
from pathlib import Path
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
        bool, typer.Option("--check-loss", help="Compare the fused loss with the reference on the first batch.")
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
def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Eval or train runs: folders, or names under results/eval and results/train.")
    ],
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Run (name, folder or method) to compare with. Default: GRPO, else SFT, untrained, the first."
        ),
    ] = None,
    k: Annotated[str | None, typer.Option("--k", help="Which k to show, e.g. 1,8,16,32,64.")] = None,
    scoring: Annotated[str | None, typer.Option(help="strict or lenient. Default: the runs' own headline.")] = None,
    format: Annotated[str, typer.Option("--format", help="table, markdown, latex, csv or json.")] = "table",
    per_subject: Annotated[bool, typer.Option("--per-subject", help="One more table a subject and a level.")] = False,
    allow_mismatch: Annotated[
        bool,
        typer.Option(
            "--allow-mismatch",
            help="Compare unlike or incomplete runs on what they share, with a note.",
        ),
    ] = False,
    figures: Annotated[
        Path | None, typer.Option(help="Write the figures here, as PNG and SVG (extra: report).")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained page: tables, curves, completions.")
    ] = None,
    samples_mb: Annotated[
        float,
        typer.Option(
            "--samples-mb", help="Room in the page for completions, in MB; the rest is left out and the page says so."
        ),
    ] = 1.5,
) -> None:
    """Compare runs: paired differences with intervals, figures, and a page to look into any completion."""
    from evalkit.command import run_compare

    run_compare(
        runs,
        baseline=baseline,
        k=k,
        scoring=scoring,
        format=format,
        per_subject=per_subject,
        allow_mismatch=allow_mismatch,
        figures=figures,
        html=html,
        samples_mb=samples_mb,
    )


if __name__ == "__main__":
    app()
