"""TRL's trainers with GTPO's objective, and with what a run does around them.

gtpo_config       GTPOConfig: the arguments
gtpo_trainer      GTPOTrainer: what happens around TRL's methods, in order
calibration       H_ini before step 0, and the entropy gate's decision
group_statistics  a round of sampling: what is logged of groups for every method, and conflict weights over whole groups
policy_head       the fused loss inside the model's own forward
checks            what is refused, mended or compared before the first step
adapter_sync      what vLLM is given: only the adapter, if it can
shared_prefixes   tokens that the rows of a batch share, computed once
trl_seam          TRL's private names, checked when they are imported
"""

from gtpo.trainer.gtpo_config import GTPOConfig
from gtpo.trainer.gtpo_trainer import GTPOTrainer, RunTrainer, SampledTrainer

__all__ = ["GTPOConfig", "GTPOTrainer", "RunTrainer", "SampledTrainer"]
