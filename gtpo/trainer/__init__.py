"""TRL's trainers with GTPO's objective, and with what a run does around them.

Begin with gtpo_trainer, which calls the other modules by name, in the order in which things happen.
"""

from gtpo.trainer.gtpo_trainer import GTPOConfig, GTPOTrainer, RunPart, RunTrainer, SampledTrainer

__all__ = ["GTPOConfig", "GTPOTrainer", "RunPart", "RunTrainer", "SampledTrainer"]
