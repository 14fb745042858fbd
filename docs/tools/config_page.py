"""docs/config.md: every key of a training run's config, from the schema (`python docs/tools/reference.py`)."""

from __future__ import annotations

from typing import Any

from gtpo.config.flags import SHORTCUTS
from gtpo.config.published import REWARDS, RUNTIME, TRAINERS, WITHOUT_EFFECT
from gtpo.config.reference import by_section, default_of

INTRODUCTION = """\
<!-- Written by `python docs/tools/reference.py` from gtpo/config/schema.py. Edit the schema, not this file. -->

# The config of a training run

`gtpo train CONFIG [flags]`, where CONFIG is a YAML file or the name of one that comes with gtpo, such as
`paper/llama-math-gtpo-g8` (`gtpo configs` lists them). Every key below is also a flag, `--section.key value`, before or
after the file. A list takes several words, `--key=value` works too, and a flag wins over the file. `gtpo train
--help-config` prints this list, `--dry-run` prints what a run resolves to.

A file may extend others: `extends: base.yaml`, or a list. They are files relative to the extending one, or names as
above. Sections merge key by key, lists are replaced, and `section: null` clears the base's section.

Numbers such as `1e-6` are numbers. Unknown keys, values out of range and contradictions are errors, exit code 2, before
anything heavy is imported. They are reported together, each with the key as you typed it, its file and its line. A key
that is accepted but has no effect in this run is named on stderr.
"""


def _cell(text: Any) -> str:
    return str(text).replace("|", "\\|")


def as_markdown() -> str:
    """Return docs/config.md."""
    out = [INTRODUCTION]
    for name, doc, own in by_section():
        out.append(f"## {f'`{name}`' if name else 'Top level'}\n\n{doc}\n")
        out.append("| key | takes | default | |\n|---|---|---|---|")
        out += [f"| `{key.name}` | {_cell(key.expects)} | {_cell(default_of(key))} | {_cell(key.doc)} |" for key in own]
        out.append("")
    out.append("## Short flags\n\n| flag | sets |\n|---|---|")
    out += [f"| `--{flag}` | `{key}` |" for flag, key in SHORTCUTS.items()]
    out.append("\n`--dataset-subset` may be repeated.\n")
    out.append(PUBLISHED)
    out.append("| in the published file | here |\n|---|---|")
    out += [
        f"| `trainer.class_path: {path}` | `method: {method}` |" for path, (method, line) in TRAINERS.items() if line
    ]
    out += [f"| `trainer.reward_funcs: {path}` | `{ours}` ({why}) |" for path, (ours, why) in REWARDS.items()]
    out += [f"| `gtpo_runtime.{key}` | `objective.{field}` |" for key, field in RUNTIME.items()]
    out += [f"| `{key}` | no effect: {why} |" for key, why in WITHOUT_EFFECT.items()]
    out += [f"| {theirs} | {ours} |" for theirs, ours in PUBLISHED_ROWS]
    return "\n".join(out)


PUBLISHED = """\
## The published config files

The authors' own files and flags run unchanged. Each mapping below is named in one line on stderr, and so is each key
that has no effect. None of these keys remains in the run's config.yaml. The files train with the paper's objective;
`--objective.preset gtpo-published --trainer.reward_funcs gtpo.rewards.published_final_reward
--training.temperature 0.9` computes what the authors' code computed (docs/paper_vs_code.md).
"""

PUBLISHED_ROWS = (
    ('`training.num_generations: "8/12"`', "8, with a warning"),
    (
        "`training.per_device_train_batch_size` that gives no complete groups (1 with G = 8)",
        "the nearest multiple of G; below G it is G, as in the published code: one prompt per step with 1 process and "
        "no accumulation",
    ),
    (
        "`training.beta` above 0 with GTPO",
        "refused: GTPO has no KL term, and the key had no effect in the published code",
    ),
    ("8-bit optimizer with an Adam beta above 0.9999", "the same optimizer with 32-bit states"),
    ("the published trainer classes", "set `training.gradient_checkpointing: true`, as the published script did"),
    (
        "`training.temperature`, which none of the authors' files sets",
        "1.0, and a line says so at the start: their logged runs sampled at 0.9 (`--training.temperature 0.9`)",
    ),
    ("`dataset.subset`", "`dataset.subsets` with this one subset (`main`: all of GSM8K)"),
    (
        "`env.CUDA_VISIBLE_DEVICES`, `--cuda`",
        "set the GPUs: the flag wins over the shell's CUDA_VISIBLE_DEVICES, which wins over the file",
    ),
    (
        "`training.report_to: [wandb]` where wandb is not installed",
        "the run is not tracked; metrics.jsonl has everything",
    ),
    ("keys of the old flat layout (`learning_rate` at the top level)", "moved into their section"),
)
