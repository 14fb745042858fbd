"""TRL's GRPOTrainer with GTPO's objective.

gtpo_config       GTPOConfig: the arguments
gtpo_trainer      GTPOTrainer: the loss
calibration       H_ini before step 0, and the entropy gate's decision
behaviour         the statistics of the policy that sampled, where several steps share its round
group_statistics  what is logged of groups for every method, and conflict weights over whole groups
rollout           Rollout: a round of sampling, and its rows in TRL's batch dict
policy_head       the fused loss inside the model's own forward
check_inputs      what is refused or warned of, that a user would not see otherwise
check_loss        the fused loss against the reference, on the first batch of a run
adapter_sync      what vLLM is given: the adapter alone where it can; sampler_check compares the two policies
trl_seam          TRL's private names, all of them
"""

from gtpo.trainer.gtpo_config import GTPOConfig
from gtpo.trainer.gtpo_trainer import GTPOTrainer

__all__ = ["GTPOConfig", "GTPOTrainer"]
