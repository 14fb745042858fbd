"""The command line: parses, prints, exits. torch and vllm are imported inside the commands only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gtpo.common.errors import UserError
from gtpo.common.log import start_logging
from gtpo.common.packages import require


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
    rich_markup_mode=None,  # rich's help takes longer to import than the rest of --help together
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
    quiet: Annotated[bool, typer.Option("--quiet", help="Only warnings and errors on stderr.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="More detail on stderr, also from the libraries.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Train a model from a config. Every key is also a flag, e.g. --training.learning_rate 2e-6.

    Lists take several words. Shortcuts: --model-name --dataset-name --dataset-subset (repeatable) --dataset-split
    --data-dir --cuda --run-name. The same command again resumes an interrupted run.
    """
    from gtpo.config import load_config
    from gtpo.config.flags import parse_flags
    from gtpo.config.schedule import launched_processes

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
    if check_loss and config.method != "gtpo":
        raise UserError(
            f"--check-loss compares GTPO's fused loss with its reference; method {config.method} has neither"
        )
    require("gtpo train", "torch", "transformers", "trl", "peft", "datasets", "accelerate", extra="train")
    if dry_run:
        from gtpo.plan.dry_run import dry_run as describe

        describe(config, json_output=json_output)
        return
    from gtpo.run.command import train as run

    scorer: Any = None
    if config.training.eval_steps is not None:
        from gtpo.evalkit.evaluation.held_out import score_held_out as scorer
    run(config, json_output=json_output, check_loss=check_loss, score_held_out=scorer)
    if launched_processes() > 1:
        from gtpo.run.processes import end_process

        end_process()


@app.command("eval")
def evaluate(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(help="Hub name, model folder, adapter folder or train run; with --rescore an eval run."),
    ] = None,
    benchmarks: Annotated[
        str | None,
        typer.Option("--benchmarks", "-b", help="Comma-separated names (--list) or files of your own."),
    ] = None,
    k: Annotated[int, typer.Option("--k", help="Largest k of pass@k and maj@k.")] = 1,
    samples: Annotated[int | None, typer.Option(help="Completions per question (default: k).")] = None,
    engine: Annotated[str, typer.Option(help="auto, vllm, transformers, openai or ray.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Folder with local benchmark files.")] = None,
    completions: Annotated[
        Path | None, typer.Option(help="Score the recorded completions of a JSONL file; no model is run.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder (default: results/eval/NAME).")] = None,
    list_benchmarks: Annotated[bool, typer.Option("--list", help="List the benchmarks and exit.")] = False,
    check: Annotated[
        str | None, typer.Option(help="Print three problems of this benchmark, verify all golds, and exit.")
    ] = None,
    rescore: Annotated[
        bool, typer.Option("--rescore", help="Verify the stored completions of an eval run again; print changes.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Use only the first N questions of each benchmark.")] = None,
    questions: Annotated[
        list[str] | None, typer.Option("--question", help="Use only the question with this id (repeatable).")
    ] = None,
    shard: Annotated[str | None, typer.Option(help="i/n: part i of n of the questions, for n machines.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0 is greedy (default: 1).")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling (default: 1, off).")] = None,
    top_k: Annotated[int | None, typer.Option(help="Only the k likeliest tokens (default: 0, off).")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Only tokens this fraction as likely as the likeliest (default: 0, off).")
    ] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="Between -2 and 2 (default: 0, off).")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Default: 1, off.")] = None,
    sampling: Annotated[
        str, typer.Option(help="default, or model: what the model's generation_config.json recommends. Flags win.")
    ] = "default",
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Maximum tokens per completion (default: the train run's, else what fits, up to 32768)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the run; every sample's own seed is derived from it.")] = 0,
    prompt: Annotated[
        str | None, typer.Option(help="System prompt (default: the train run's, else ours); '' for none.")
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="Jinja file that replaces the tokenizer's chat template.")
    ] = None,
    chat_template_kwargs: Annotated[
        str | None, typer.Option(help="JSON for the chat template, e.g. '{\"enable_thinking\": true}'.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Weights of a train run: best, final, or a checkpoint (default: best).")
    ] = None,
    scoring: Annotated[
        str | None,
        typer.Option(
            help="Headline scoring: strict or lenient (default: strict; with --rescore the run's own). Both are stored."
        ),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per batch (transformers).")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    base_url: Annotated[
        list[str] | None,
        typer.Option(
            help="Server URL (openai; repeatable, or a comma list, or a file with one on each line; default: "
            "OPENAI_BASE_URL)."
        ),
    ] = None,
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the API key (openai).")
    ] = "OPENAI_API_KEY",
    concurrency: Annotated[int, typer.Option(help="Maximum requests in flight at each server (openai).")] = 64,
    timeout: Annotated[float, typer.Option(help="Seconds without a byte until a request fails (openai).")] = 600.0,
    retries: Annotated[int, typer.Option(help="Further attempts of a failed request (openai).")] = 5,
    fail_on_error: Annotated[
        str, typer.Option(help="Stop when more samples than this fail: a number, or a share (0.05 or 5%).")
    ] = "5%",
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Samples that do not depend on what shares their batch.")
    ] = False,
    tensor_parallel_size: Annotated[int, typer.Option(help="GPUs per model copy (vllm, ray).")] = 1,
    data_parallel_size: Annotated[
        int | None, typer.Option(help="Model copies, on Ray (vllm: default 1; ray: default as many as the GPUs hold).")
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Ray cluster to join: auto, or HOST:PORT of its head (ray; default: starts one here)."),
    ] = None,
    gpu_memory_utilization: Annotated[float, typer.Option(help="Share of GPU memory to use (vllm, ray).")] = 0.9,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code from the model's repository.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show warnings and the result only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show details that help to find a fault.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print eval.json on stdout.")] = False,
) -> None:
    """Sample completions and report pass@k and maj@k for every k, exactly.

    The same command again resumes an interrupted run; a larger --k samples only what is missing.
    """
    given = {name: value for name, value in locals().items() if name != "context"}  # named as in `EvalSettings`
    from gtpo.evalkit.evaluation.command import run_eval

    quiet, verbose = given.pop("quiet"), given.pop("verbose")
    if quiet and verbose:
        raise UserError("--quiet and --verbose exclude each other")
    sources = {p.opts[0]: (p.name, context.get_parameter_source(p.name or "")) for p in context.command.params}
    given["flags"] = {name: flag for flag, (name, source) in sources.items() if source and source.name == "COMMANDLINE"}
    code = run_eval(verbosity="quiet" if quiet else "verbose" if verbose else "normal", **given)
    if code:
        raise typer.Exit(code)


@app.command()
def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Eval or train runs: folders, or names under results/eval and results/train.")
    ],
    baseline: Annotated[
        str | None,
        typer.Option(help="Method or run to compare with. Default: GRPO, else SFT, else a model not trained here."),
    ] = None,
    group_by: Annotated[
        str,
        typer.Option(
            "--group-by",
            help="What makes runs one method: config (equal but for the seed), none, or config keys, e.g. "
            "method,training.num_generations.",
        ),
    ] = "config",
    label: Annotated[
        list[str] | None, typer.Option(help="NAME=RUN[,RUN...]: these runs are one method of that name (repeatable).")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Metrics of the table, e.g. pass@1 or maj@64 (repeatable); the first is the primary one. Default: "
            "pass@1 and maj@k of the largest common k."
        ),
    ] = None,
    details: Annotated[bool, typer.Option("--details", help="Also every k, the format rate and every test.")] = False,
    k: Annotated[str | None, typer.Option("--k", help="The k of the details, e.g. 1,8,16,32,64.")] = None,
    scoring: Annotated[str | None, typer.Option(help="strict or lenient. Default: the runs' own headline.")] = None,
    format: Annotated[str, typer.Option("--format", help="table, markdown, latex, csv or json.")] = "table",
    per_subject: Annotated[bool, typer.Option("--per-subject", help="Also one table per subject and level.")] = False,
    allow_mismatch: Annotated[
        bool,
        typer.Option("--allow-mismatch", help="Compare unlike or incomplete runs on what they share, with a note."),
    ] = False,
    figures: Annotated[
        Path | None, typer.Option(help="Write figures to this folder, as PDF, SVG and PNG (extra: report).")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained page: tables, curves, completions.")
    ] = None,
    samples_mb: Annotated[
        float,
        typer.Option("--samples-mb", help="MB of completions in the page; it says how many are left out."),
    ] = 1.5,
) -> None:
    """Compare methods: paired differences with intervals, figures, and a page to look into any completion.

    Runs that differ only in their training seed are one method.
    """
    from gtpo.evalkit.report.command import CompareSettings, run_compare

    run_compare(
        CompareSettings(
            runs,
            baseline=baseline,
            group_by=group_by,
            labels=tuple(label or ()),
            metrics=tuple(metric or ()),
            details=details,
            k=k,
            scoring=scoring,
            format=format,
            per_subject=per_subject,
            allow_mismatch=allow_mismatch,
            figures=figures,
            html=html,
            samples_mb=samples_mb,
        )
    )


@app.command()
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Describe the machine only; no self-test.")] = False,
    out: Annotated[Path | None, typer.Option(help="File for the report. [default: gtpo-doctor-TIME.json]")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as JSON on stdout.")] = False,
) -> None:
    """Say what this machine can do, and test it in about two minutes.

    The self-test: the fused loss against float64 and its speed, a run of 3 steps, an evaluation of 16 samples. Exit
    code 1 if a part of it failed.
    """
    from gtpo.doctor.command import run_doctor

    start_logging()
    if not run_doctor([sys.executable, "-m", "gtpo"], out=out, quick=quick, json_output=json_output):
        raise typer.Exit(1)
