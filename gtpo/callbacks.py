"""What makes `gtpo train` trustworthy, as parts for any script with a GTPOTrainer, GRPOBaseline or SFTBaseline.

The baselines are TRL's GRPOTrainer and SFTTrainer; GRPOBaseline logs the metrics of groups under GTPOTrainer's names.
Each part is built for a trainer and added to it, before `train()`, in this order; `gtpo train` does the same:

    trainer.add_callback(UntrainedKL(trainer, every=10))

UntrainedKL        logs the distance from the untrained policy, without a KL term in the loss
Validation         samples and scores held-out problems while training
CollapseWatch      warns of a collapse, stops or rolls back, with a stated rate of false alarms; keeps best/
RunLog             a run folder, which `gtpo view`, `gtpo eval` and `gtpo compare` read; for TRL's own trainers too
Progress           one line on the terminal that says how far the run is, and what a long step is at
Advice             warns of settings that learn nothing
ExactCheckpoints   a resumed run is the uninterrupted one, bit for bit; checkpoints end a round of sampling
"""

from gtpo.train.advice import Advice
from gtpo.train.collapse import CollapseWatch
from gtpo.train.progress import Progress
from gtpo.train.resume import ExactCheckpoints
from gtpo.train.run_log import RunLog
from gtpo.train.trainers import GRPOBaseline, SFTBaseline
from gtpo.train.untrained_kl import UntrainedKL
from gtpo.train.validation import Validation

__all__ = [
    "Advice",
    "CollapseWatch",
    "ExactCheckpoints",
    "GRPOBaseline",
    "Progress",
    "RunLog",
    "SFTBaseline",
    "UntrainedKL",
    "Validation",
]
