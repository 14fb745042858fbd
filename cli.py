"""The command line: parses, prints, exits. torch and vllm are imported inside the commands only."""

from __future__ import annotations

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


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def train(
    context: typer.Context,
    config: Annotated[str, typer.Argument(help="A YAML file: one of configs/ or your own.")],
) -> None:
    """Train a model from a config; every key is also a flag, e.g. --training.learning_rate 2e-6."""
    raise UserError("gtpo train is not built yet")


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
