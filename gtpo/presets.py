"""The switches of the objective and their named settings, free of torch so that configs validate in an instant.

`gtpo.objective` re-exports both names and holds the mathematics. Every row of PRESETS is a row of the table in
docs/method.md; a variant is `dataclasses.replace(PRESETS["gtpo"], gamma=0.01)`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from gtpo.common.errors import did_you_mean
from gtpo.common.settings import Key

# The paper's entropy threshold in nats: the entropy of a fair choice between two tokens (Eq. 6).
LN2 = math.log(2.0)


@dataclass(
    # strict: a YAML '0.1' in quotes is a mistake that pydantic would otherwise repair in silence.
    frozen=True,
    config=ConfigDict(strict=True, allow_inf_nan=False, extra="forbid", use_attribute_docstrings=True),
)
class _Switches:
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Centred advantages are divided by the rewards' sample standard deviation + 1e-4. It is taken over the `group` or
    over the whole rollout (`batch`); `none` does not divide."""
    positive_advantage_weight: Annotated[float, Field(ge=0)] = 1.0
    """Factor on positive advantages; 0 learns from negative completions only (NSR, arXiv 2506.01347)."""
    negative_advantage_weight: Annotated[float, Field(ge=0)] = 1.0
    """Factor on negative advantages; 0 learns from positive completions only (PSR). Neither factor moves a span."""
    conflict: bool = True
    """Whether conflict tokens are reweighted; off gives lambda = 1 everywhere (GRPO)."""
    combine: Literal["or", "product"] = "or"
    """How the forward and the backward span's weights meet if both cover a token."""
    positive_weight: Annotated[float, Field(ge=0)] = 2.0
    """lambda of a conflict token in a completion of positive advantage (Eq. 5)."""
    group_reduction: Literal["mean", "sum"] = "mean"
    """Mean (Eq. 7) or sum (published code) over the completions of a group."""
    conflict_norm: Literal["none", "union", "max"] = "none"
    """Extra per-completion divisor: none (paper), the union of the spans, or max(1, forward, backward)."""
    filter: Literal["auto", "always", "never"] = "auto"
    """The entropy gate: `auto` is active iff the untrained model's entropy lies below ln 2 (Eq. 6)."""
    filter_scope: Literal["all", "negative"] = "all"
    """Which completions the gate may drop: all, or those of negative advantage only."""
    entropy_threshold: Annotated[float, Field(gt=0)] = LN2
    """Mean token entropy in nats above which a completion is dropped; equality keeps."""
    entropy_mode: Literal["advantage", "loss", "none"] = "advantage"
    """`advantage`: `A' = A - gamma <H>`, no gradient through H. `loss`: differentiable `-gamma <H>` (Eq. 7)."""
    entropy_gated: bool = False
    """In mode `loss`: whether the gate also drops the entropy term."""
    gamma: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the entropy term."""
    log_clamp: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probabilities are clamped at this value inside the entropy's logarithm (published code: 1e-6; 0 is exact)."""
    entropy_temperature: Literal["sampling", "one"] = "sampling"
    """Temperature of the distribution whose log-probabilities and entropy are taken."""
    surprisal_low: Annotated[float, Field(ge=0)] = 0.0
    """Tokens whose `-log p / H` lies below this have no policy gradient (RSI-S, arXiv 2606.31575)."""
    surprisal_high: Annotated[float | None, Field(gt=0)] = None
    """Tokens whose `-log p / H` lies above this have no policy gradient either. Unset: none lies above."""
    negative_token_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the tokens of a completion of negative advantage, the least likely ones, that are pushed down; the
    others have no policy gradient (NTF, arXiv 2606.17250)."""
    band_low: Annotated[float, Field(ge=0)] = 0.0
    """If the round's mean entropy in nats lies below it, positive advantages are left out (arXiv 2604.26326)."""
    band_high: Annotated[float | None, Field(gt=0)] = None
    """If it lies above this, negative advantages are left out. Unset: nothing lies above."""
    band_low_end: Annotated[float | None, Field(ge=0)] = None
    """`band_low` at the last step, reached in a straight line. Unset: it stays."""
    band_high_end: Annotated[float | None, Field(gt=0)] = None
    """`band_high` at the last step, reached in a straight line. Unset: it stays."""
    loss: str | None = None
    """Your own loss in the place of `gtpo.objective.policy_loss`, as `package.module:function`."""
    loss_source: str | None = None
    """Hash of the file that `loss` lies in, which a run fills in: another formula is another run."""
    skip_zero_variance_groups: bool = False
    """Drop groups whose rewards are all equal; otherwise the entropy term still moves them."""
    mask_truncated: bool = False
    """Leave completions that ended without EOS out of the loss."""


class Objective(_Switches):
    """Every switch of the objective; the defaults are the paper's GTPO.

    Raises ValueError in one sentence for a value of another type or outside its range (the field, what it may be, what
    was found), and for fields that contradict each other.
    """

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            # Only the first: a script's author mends one field at a time, and a config file is checked elsewhere.
            fault = error.errors()[0]
            name = str(fault["loc"][0])
            known = vars(_Switches)["__pydantic_fields__"]
            if name not in known:
                near = did_you_mean(name, known) or f" Its fields are {', '.join(known)}"
                raise ValueError(f"objective has no field {name}.{near}") from None
            raise ValueError(Key(name, known[name]).sentence(f"objective: {name}", fault["input"])) from None
        if contradiction := self._contradiction():
            raise ValueError(f"objective: {contradiction}")

    def _contradiction(self) -> str | None:
        low, high, last = self.band_low, self.band_high or math.inf, self.band_low_end
        last_low, last_high = low if last is None else last, self.band_high_end or high
        learns = self.positive_advantage_weight or self.negative_advantage_weight
        learns = learns or (self.gamma and self.entropy_mode != "none")
        faults = {
            "positive_advantage_weight 0 with negative_advantage_weight 0 and no entropy term learns nothing":
                not learns,
            f"surprisal_low {self.surprisal_low} is not below surprisal_high {self.surprisal_high}":
                self.surprisal_low >= (self.surprisal_high or math.inf),
            "band_high_end needs band_high, from which it goes": last_high < high == math.inf,
            "band_low_end needs band_low or band_high": last is not None and not self.has_band,
            f"band_low {low} to {last_low} exceeds band_high {high} to {last_high}": low > high or last_low > last_high,
        }  # fmt: skip
        return next((fault for fault, holds in faults.items() if holds), None)

    def temperature(self, sampling: float) -> float:
        """Return the temperature at which log-probabilities and entropy are taken, given that of the sampling."""
        return 1.0 if self.entropy_temperature == "one" else sampling

    @property
    def span_options(self) -> dict[str, Any]:
        """What `gtpo.conflict` is told of this objective."""
        return {"positive_weight": self.positive_weight, "combine": self.combine}

    @property
    def chooses_tokens(self) -> bool:
        """Whether some tokens have no policy gradient, by their probabilities."""
        return self.surprisal_low > 0 or self.surprisal_high is not None or self.negative_token_share < 1

    @property
    def has_band(self) -> bool:
        """Whether completions are left out by the round's mean entropy."""
        return self.band_low > 0 or self.band_high is not None

    def head_options(self, sampling: float) -> dict[str, Any]:
        """Return what `gtpo.head.head_statistics` is told of this objective, given the temperature of the sampling."""
        differentiated = self.entropy_mode == "loss" and self.gamma != 0
        temperature = self.temperature(sampling)
        return {"temperature": temperature, "log_clamp": self.log_clamp, "entropy_gradient": differentiated}


_PAPER = Objective()
# GRPO as switches of this objective. Method `grpo` trains with TRL's own loss; this describes it for comparison.
_GRPO = replace(_PAPER, conflict=False, filter="never", entropy_mode="none")

# The presets of docs/method.md. `sft` has no objective of this kind and is no preset.
PRESETS: dict[str, Objective] = {
    "gtpo": _PAPER,
    # Not the paper's method: what its authors' code computed, which made the published curves.
    "gtpo-published": replace(
        _PAPER,
        scale_rewards="none",
        combine="product",
        group_reduction="sum",
        conflict_norm="max",
        filter="always",
        entropy_threshold=0.7,
        log_clamp=1e-6,
        # It samples at 0.9 and measures entropy at 1.
        entropy_temperature="one",
    ),
    # Eq. 7 read literally: the entropy term is differentiated. It pushes entropy the other way.
    "gtpo-eq7": replace(_PAPER, entropy_mode="loss"),
    "gtpo-conflict-only": replace(_PAPER, filter="never", entropy_mode="none"),
    "gtpo-no-filter": replace(_PAPER, filter="never"),
    # Figure 10b, 'OnlyNeg'.
    "gtpo-negative-only": replace(_PAPER, filter="always", filter_scope="negative"),
    "grpo": _GRPO,
    # Figure 10c. It is trained by GTPOTrainer, which has the gate.
    "grpo-filtered": replace(_PAPER, conflict=False, filter="always", entropy_threshold=1.05),
    "nsr": replace(_GRPO, positive_advantage_weight=0.0),
    "psr": replace(_GRPO, negative_advantage_weight=0.0),
    "w-reinforce": replace(_GRPO, positive_advantage_weight=0.1),
    # Which numbers are the papers' own: docs/method.md, "Who gets pushed, by how much".
    "rsi": replace(_GRPO, surprisal_low=0.1, surprisal_high=3.0),
    "ntf": replace(_GRPO, negative_token_share=0.1),
    "entropy-band": replace(_GRPO, band_low=0.6, band_high=0.7, band_low_end=0.1, band_high_end=0.2),
}
