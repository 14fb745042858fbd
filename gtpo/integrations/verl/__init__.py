"""GTPO on verl (Ray), without a fork: docs/verl.md.

settings     verl's config -> the objective; what verl cannot express is refused by name. Imports neither verl nor torch
advantages   a batch of completions -> token-level advantages for verl's own policy loss, and the metrics. Needs torch
trainer      the registered trainer (`trainer.v1.trainer_mode: gtpo_sync`). Needs verl
reward       the rewards of `rewards` in the shape of a verl reward function
data         GSM8K and MATH as verl's parquet files, with the prompt that `gtpo eval` uses
__main__     `python -m gtpo.integrations.verl`: checks everything, then starts verl
"""
