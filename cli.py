"""The command line: parses, prints, exits. torch and vllm are imported inside the commands only."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rewards.support.errors import UserError
from rewards.support.log import start_logging
from rewards.support.packages import require


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
    verbose: Annotated[bool, typer.Option("--verbose", help="More detail on stderr, also from the libraries.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Train a model from a config. Every key is also a flag, e.g. --training.learning_rate 2e-6.

    Lists take several words. Shortcuts: --model-name --dataset-name --dataset-subset (repeatable) --dataset-split
    --data-dir --cuda --run-name. The same command again resumes an interrupted run.
    """
    from gtpo.config import load_config
    from gtpo.config.flags import parse_flags

    if quiet and verbose:
        raise UserError("--quiet and --verbose exclude each other")
    start_logging("quiet" if quiet else "verbose" if verbose else "normal")
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
    require("gtpo train", "torch", "transformers", "trl", "peft", "datasets", "accelerate", extra="train")
    if dry_run:
        from gtpo.plan.dry_run import dry_run as describe

        describe(config, json_output=json_output)
        return
    from gtpo.plan.preflight import preflight

    preflight(config)
    from gtpo.run.command import train as run

    run(config, quiet=quiet, json_output=json_output, check_loss=check_loss)


@app.command("eval")
def evaluate(
    model: Annotated[
        str | None, typer.Argument(help="Hub name, model or adapter folder, or train run; the served name for openai.")
    ] = None,
    benchmarks: Annotated[
        str | None, typer.Option("--benchmarks", "-b", help="Comma-separated; see --list. Your own file works too.")
    ] = None,
    k: Annotated[int, typer.Option("--k", help="Largest k of pass@k and maj@k.")] = 1,
    samples: Annotated[int | None, typer.Option(help="Completions a question; k where not given.")] = None,
    engine: Annotated[str, typer.Option(help="auto, vllm, transformers or openai.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Folder of local benchmark files.")] = None,
    completions: Annotated[Path | None, typer.Option(help="Score recorded completions (JSONL): no model.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; results/eval/NAME where not given.")] = None,
    list_benchmarks: Annotated[bool, typer.Option("--list", help="List the benchmarks and stop.")] = False,
    rescore: Annotated[
        bool, typer.Option("--rescore", help="MODEL is an eval run: verify its completions again, show what changed.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Only the first this many questions of each benchmark.")] = None,
    question: Annotated[list[str] | None, typer.Option(help="Only this question (repeatable).")] = None,
    shard: Annotated[str | None, typer.Option(help="i/n: every n-th question, for n machines.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus; 1 is off.")] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(help="Longest completion; the train run's, else 2048, where not given.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Every sample has its own, derived from this one.")] = 0,
    prompt: Annotated[
        str | None, typer.Option(help="System prompt; the train run's where not given, '' for none.")
    ] = None,
    chat_template: Annotated[Path | None, typer.Option(help="Jinja file in place of the tokenizer's.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Of a train run: best, final, or a checkpoint.")] = None,
    scoring: Annotated[str, typer.Option(help="Headline: strict or lenient; both are stored.")] = "strict",
    batch_size: Annotated[int | None, typer.Option(help="Rows of a batch, engine transformers.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    base_url: Annotated[str | None, typer.Option(help="Server, engine openai; OPENAI_BASE_URL.")] = None,
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the key, engine openai.")
    ] = "OPENAI_API_KEY",
    concurrency: Annotated[int, typer.Option(help="Requests in flight, engine openai.")] = 64,
    tensor_parallel_size: Annotated[int, typer.Option(help="GPUs a model copy, engine vllm.")] = 1,
    data_parallel_size: Annotated[int, typer.Option(help="Model copies, engine vllm.")] = 1,
    gpu_memory_utilization: Annotated[float, typer.Option(help="Share of the GPU, engine vllm.")] = 0.9,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code from the model's repository.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only the result.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print eval.json on stdout.")] = False,
) -> None:
    """Sample k completions a question and report pass@k and maj@k for every k, exactly.

    The same command again resumes an interrupted run; a larger --k samples only what is missing.
    """
    from evalkit.evaluation import printing

    if list_benchmarks:
        printing.print_benchmarks()
        return
    from evalkit.evaluation.evaluate import evaluate as run
    from evalkit.evaluation.pipeline import Incomplete
    from evalkit.evaluation.settings import EvalSettings

    if rescore:
        from evalkit.evaluation.rescore import rescore as again

        folder, record = again(model, scoring=scoring, quiet=quiet)
    else:
        settings = EvalSettings(
            model=model,
            benchmarks=benchmarks,
            k=k,
            samples=samples,
            engine=engine,
            data_dir=data_dir,
            completions=completions,
            out=out,
            limit=limit,
            questions=tuple(question or ()),
            shard=shard,
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            seed=seed,
            prompt=prompt,
            chat_template=chat_template,
            checkpoint=checkpoint,
            scoring=scoring,
            batch_size=batch_size,
            dtype=dtype,
            base_url=base_url,
            api_key_env=api_key_env,
            concurrency=concurrency,
            tensor_parallel_size=tensor_parallel_size,
            data_parallel_size=data_parallel_size,
            gpu_memory_utilization=gpu_memory_utilization,
            trust_remote_code=trust_remote_code,
            quiet=quiet,
        )
        try:
            folder, record = run(settings)
        except Incomplete as stop:
            print(f"gtpo: incomplete: {stop}. What was sampled is stored; the same command resumes", file=sys.stderr)
            raise typer.Exit(130 if stop.interrupted else 3) from None
    if json_output:
        import json

        print(json.dumps(record, indent=2))
    else:
        printing.print_summary(folder, record, k)


@app.command()
def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Eval or train runs: folders, or names under results/eval and results/train.")
    ],
    baseline: Annotated[
        str | None,
        typer.Option(help="Run (name, folder or method) to compare with. Default: GRPO, else SFT, else untrained."),
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
    from evalkit.report.command import run_compare

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
