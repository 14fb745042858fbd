"""What metrics.jsonl of a train run holds, column by column; docs/metrics.md is written from it."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """One name of metrics.jsonl."""

    name: str
    """UPPER CASE stands for a name or number that the run's config gives."""
    unit: str
    meaning: str
    healthy: str = ""
    otherwise: str = ""
    """What to do where it is not healthy."""
    when: str = ""
    """Which runs write it; empty: all."""


METRICS = (
    Metric("step", "count", "Optimizer step. Lines come every `training.logging_steps` steps."),
    Metric(
        "loss", "-",
        "Value of the loss, mean over the logged steps. With one step per rollout it says little: every ratio is "
        "1, so it does not fall as the policy improves.",
        "finite; sft: falls",
        "Read the rewards and the entropy. A loss that is not finite counts as a collapse.",
    ),
    Metric(
        "grad_norm", "-",
        "Norm of the gradient before clipping at `training.max_grad_norm`.",
        "the same order throughout",
        "A jump by ten or more: lower `training.learning_rate`, or clip lower.",
    ),
    Metric("lr", "-", "Learning rate of the step.", "as scheduled"),
    Metric("epoch", "passes", "Passes over the training data so far.", "-"),
    Metric("tokens/seen", "tokens", "Tokens trained on so far, prompts included.", "-"),
    Metric("tokens/accuracy", "fraction", "Share of target tokens that were the likeliest.", "rises", when="sft"),
    Metric(
        "reward/accuracy", "points, 0 to 10",
        "Accuracy reward, mean over the rollout's completions: 10 for a verified answer inside the answer tags.",
        "rises, in noise",
        "0 from the start: read `completions/` for the reason, and `reward/format`. Falls: see "
        "[Collapse](training.md#collapse).",
        when="gtpo and grpo, with `final_reward` or `accuracy_reward` among the rewards",
    ),
    Metric(
        "reward/format", "points, 0 to 10",
        "Format reward: 10 for the full layout, 1 for some tags, 0 for none.",
        "near 10 after some tens of steps",
        "Below 5 for long: the model does not know the layout; start from an instruct model or with `method: "
        "sft`. Falling while entropy rises is a collapse.",
        when="gtpo and grpo",
    ),
    Metric(
        "reward/of_past", "ratio",
        "Accuracy reward of the prompts that were seen before, each as a share of its own mean so far (at most 2). "
        "The mean over them. Prompts that never earned anything are left out.",
        "around 1 or above",
        "Far below 1: what was solved is lost. The collapse watch follows it.",
        when="gtpo and grpo, once prompts come again",
    ),
    Metric(
        "reward/unscored", "fraction",
        "Completions for which no reward could be computed. They take no part in the step.",
        "0",
        "A reward function failed or the machine was too busy to verify; the reason is on stderr.",
        when="gtpo and grpo",
    ),
    Metric(
        "reward/unsimplified", "fraction",
        "Answers that are right in value but were not computed, or are a copy of the problem. They earn 0.",
        "below 0.05",
        "The policy copies instead of computing: look at `completions/`.",
        when="gtpo and grpo, with an accuracy reward",
    ),
    Metric(
        "reward/paid_longer", "fraction",
        "Paid answers that are longer than their gold, or hold symbols that it lacks.",
        "steady",
        "Rising: the policy writes around the verifier; read the answers in `completions/`.",
        when="gtpo and grpo, with an accuracy reward",
    ),
    Metric(
        "reward/rejected", "fraction",
        "Answers beyond the verifier's limits on length, nesting or work. They earn 0.",
        "below 0.02",
        "The policy writes monster answers: lower `training.max_completion_length`.",
        when="gtpo and grpo, with an accuracy reward",
    ),
    Metric(
        "reward/timeout", "fraction",
        "Answers that the verifier had no time for, because the machine was busy. Unscored.",
        "0",
        "Leave a core free for the verifier.",
        when="gtpo and grpo, with an accuracy reward",
    ),
    Metric(
        "rewards/NAME/mean", "points",
        "Mean of the reward function NAME, as it returned it.",
        "rises",
        when="gtpo and grpo",
    ),
    Metric(
        "rewards/NAME/std", "points",
        "Standard deviation of the reward function NAME over the rollout.",
        "above 0",
        "0: every completion earns the same, so nothing is learned; see `groups/zero_variance`.",
        when="gtpo and grpo",
    ),
    Metric(
        "entropy/mean", "nats",
        "Entropy of the next-token distribution, mean over each completion's tokens, then over completions. sft: "
        "over the target tokens.",
        "falls slowly, or stays; below ln 2 = 0.693",
        "Rises past ln 2: the policy is coming apart; lower the learning rate, use `health.on_collapse: "
        "rollback`. Falls to a tenth: it is sure of one answer; raise `training.temperature`.",
    ),
    Metric(
        "entropy/above_ln2", "fraction",
        "Completions whose mean entropy lies above ln 2.",
        "below 0.1",
        "As for `entropy/mean`.",
        when="gtpo and grpo",
    ),
    Metric(
        "entropy/coefficient", "-",
        "The adaptive entropy coefficient of the step.",
        "between its two bounds",
        when="grpo with `training.use_adaptive_entropy`",
    ),
    Metric(
        "gate/kept", "fraction",
        "Completions that the entropy gate keeps. 0.4: six of ten had a mean entropy above "
        "`objective.entropy_threshold`, earned no gradient, and only the other four trained the policy.",
        "above 0.9; exactly 1 while the gate is off",
        "Below 0.5: the policy is coming apart (see `entropy/mean`), or the gate does not fit the model. Compare "
        "`initial_entropy` in run.json with ln 2, or set `objective.filter: never`.",
        when="gtpo",
    ),
    Metric(
        "conflict/forward", "tokens",
        "Length of the forward conflict span, mean over completions.",
        "falls as completions come to differ",
        when="gtpo and grpo; weighs nothing in grpo",
    ),
    Metric(
        "conflict/backward", "tokens",
        "Length of the backward conflict span, mean over completions.",
        "the closing tags, a few tokens",
        when="gtpo and grpo; weighs nothing in grpo",
    ),
    Metric(
        "conflict/fraction", "fraction",
        "Tokens inside a conflict span, of all tokens.",
        "falls as completions come to differ",
        "Near 1: good and bad completions differ in a few tokens only, as in the demo. 0 throughout: no group has "
        "both signs (see `groups/zero_variance`).",
        when="gtpo and grpo; weighs nothing in grpo",
    ),
    Metric(
        "groups/zero_variance", "fraction",
        "Groups whose rewards are all equal. They teach nothing but the entropy term.",
        "below 0.5",
        "Near 1 with high reward: the problems are too easy. Near 1 with low reward: too hard. Choose other "
        "problems, raise `training.num_generations`, or set `objective.skip_zero_variance_groups`.",
        when="gtpo and grpo",
    ),
    Metric(
        "completions/length", "tokens",
        "Length of a completion, EOS included, mean.",
        "steady, well below the limit",
        "Twice its usual length: see `completions/truncated`.",
        when="gtpo and grpo",
    ),
    Metric(
        "completions/truncated", "fraction",
        "Completions cut off at `training.max_completion_length`, without EOS.",
        "below 0.1",
        "They can earn no accuracy reward: raise the limit, or set `objective.mask_truncated`.",
        when="gtpo and grpo",
    ),
    Metric(
        "completions/repeated", "fraction",
        "Completions equal, token for token, to one that another prompt was given.",
        "below 0.05",
        "The policy answers without reading the problem: a collapse. Lower the learning rate.",
        when="gtpo and grpo",
    ),
    Metric(
        "policy_loss", "-",
        "The loss without TRL's entropy bonus.",
        when="grpo with `training.entropy_coef` or `training.use_adaptive_entropy`",
    ),
    Metric(
        "router/aux_loss", "-",
        "Load-balancing loss of a mixture of experts, before its coefficient.",
        "steady",
        when="mixtures of experts with that loss",
    ),
    Metric(
        "clip_ratio/low_mean", "fraction",
        "Tokens whose ratio was clipped from below, mean over processes and micro-batches.",
        "below 0.2",
        "Fewer optimizer steps per rollout, or a lower learning rate.",
        when="several optimizer steps per rollout",
    ),
    Metric(
        "clip_ratio/low_min", "fraction",
        "The smallest such share of a process.",
        when="several optimizer steps per rollout",
    ),
    Metric(
        "clip_ratio/high_mean", "fraction",
        "Tokens whose ratio was clipped from above, mean.",
        "below 0.2",
        "As for `clip_ratio/low_mean`.",
        when="several optimizer steps per rollout",
    ),
    Metric(
        "clip_ratio/high_max", "fraction",
        "The largest such share of a process.",
        when="several optimizer steps per rollout",
    ),
    Metric(
        "clip_ratio/region_mean", "fraction",
        "Tokens clipped on either side, mean.",
        "below 0.2",
        "As for `clip_ratio/low_mean`.",
        when="several optimizer steps per rollout",
    ),
    Metric(
        "kl", "nats",
        "TRL's estimate of the KL divergence from the base, per token.",
        "below 0.1",
        "Rises fast: lower the learning rate, or raise `training.beta`.",
        when="grpo with `training.beta` above 0",
    ),
    Metric(
        "kl/untrained", "nats",
        "Exact KL divergence from the untrained policy, per token. Measured, never trained on.",
        "rises slowly",
        "A jump comes with a [collapse](training.md#collapse).",
        when="`training.log_kl_steps` is set",
    ),
    Metric(
        "sampling/logp_difference", "nats",
        "Mean difference per token between the log-probabilities of the sampling engine and those of the trainer.",
        "below 1e-5 in float32, below 0.1 in bfloat16; above `rollout.logp_difference_alarm` the run stops",
        "The engine samples from another policy than the one that is trained: stale weights, another dtype or "
        "another temperature.",
        when="gtpo and grpo, with rollouts by vLLM; not where the objective's temperature is not the sampling one",
    ),
    Metric(
        "validation/pass@1", "fraction",
        "Held-out pass@1. `best/` follows it.",
        "rises with `reward/accuracy`",
        "Falls while the training reward stays: the run has learned its training problems.",
        when="`training.eval_steps` is set, every so many steps",
    ),
    Metric(
        "validation/maj@K", "fraction",
        "Held-out maj@K, K = `training.eval_samples`.",
        "rises",
        when="`training.eval_steps` is set, every so many steps",
    ),
    Metric(
        "validation/format", "fraction",
        "Held-out completions in the full layout.",
        "near 1",
        when="`training.eval_steps` is set, every so many steps",
    ),
    Metric(
        "validation/NAME_low", "fraction",
        "Lower end of the 95 % interval over problems, for each of the three above.",
        "-",
        when="`training.eval_steps` is set, every so many steps",
    ),
    Metric(
        "validation/NAME_high", "fraction",
        "Upper end of the same interval.",
        "-",
        when="`training.eval_steps` is set, every so many steps",
    ),
    Metric("time/step", "seconds", "Wall time of a step, mean over the logged steps.", "steady"),
    Metric(
        "time/generation", "seconds",
        "Of it: sampling.",
        "most of a step",
        "Sample with vLLM (`rollout.engine`).",
        when="gtpo and grpo",
    ),
    Metric(
        "time/reward", "seconds",
        "Of it: scoring.",
        "a few percent of a step",
        "Leave the verifier a core, or make your own reward faster.",
        when="gtpo and grpo",
    ),
    Metric(
        "time/validation", "seconds",
        "Time of the validation after the step, outside `time/step`.",
        "-",
        when="`training.eval_steps` is set, every so many steps",
    ),
    Metric(
        "nonfinite", "names",
        "Names of the values in this line that were not finite. They are null.",
        "absent",
        "A collapse, or a learning rate far too high.",
        when="lines with such a value",
    ),
)  # fmt: skip
