"""What makes `gtpo train` trustworthy, as parts for any script with a GTPOTrainer, GRPOBaseline or SFTBaseline.

The baselines are TRL's GRPOTrainer and SFTTrainer; GRPOBaseline logs the metrics of groups under GTPOTrainer's names.
Each part is built for a trainer and added to it, before `train()`, in this order; `gtpo train` does the same:

    trainer.add_callback(UntrainedKL(trainer, every=10))

UntrainedKL        logs the distance from the untrained policy, without a KL term in the loss
Validation         samples and scores held-out problems while training
CollapseWatch      warns of a collapse, stops or rolls back, with a stated rate of false alarms; keeps best/
RunLog             a run folder, which `gtpo view`, `gtpo eval` and `gtpo compare` read; for TRL's own trainers too
Progress           one line on the terminal that says how far the run is, and whether it samples or scores
Advice             warns of settings that learn nothing
ExactCheckpoints   a resumed run is the uninterrupted one, bit for bit; checkpoints end a round of sampling
"""

# "as": a name that this module offers.
from gtpo.train.collapse import CollapseWatch as CollapseWatch
from gtpo.train.collapse import UntrainedKL as UntrainedKL
from gtpo.train.collapse import Validation as Validation
from gtpo.train.resume import ExactCheckpoints as ExactCheckpoints
from gtpo.train.run_log import Advice as Advice
from gtpo.train.run_log import Progress as Progress
from gtpo.train.run_log import RunLog as RunLog
from gtpo.trainer.gtpo_trainer import GRPOBaseline as GRPOBaseline
from gtpo.trainer.gtpo_trainer import SFTBaseline as SFTBaseline
