"""TRL's GRPOTrainer with GTPO's objective.

gtpo_config       GTPOConfig: the arguments
gtpo_trainer      GTPOTrainer: the loss
calibration       H_ini before step 0, and the entropy gate's decision
group_statistics  what every trainer of groups logs, and conflict weights over whole groups
rollout           Rollout: a round of sampling, and its rows in TRL's batch dict
policy_head       the fused loss inside the model's own forward
check_loss        the fused loss against the reference, on the first batch of a run
"""

from gtpo.trainer.gtpo_config import GTPOConfig
from gtpo.trainer.gtpo_trainer import GTPOTrainer

__all__ = ["GTPOConfig", "GTPOTrainer"]
