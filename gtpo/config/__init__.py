"""The config of a training run: schema, loading, flags, the published dialect, help. Free of torch.

schema      TrainConfig: every key typed, ranged and documented
keys        every key by its dotted name; the reference of `gtpo train --help-config` and docs/config.md
document    the YAML with `extends`, where each key was set, and the sentence for an error in it
flags       `--section.key value` and the published shortcuts -> overrides
published   the authors' own config files: their paths and values mapped to ours, each with a printed line
resolve     contradictions, and what follows from other keys: group-complete batches, 32-bit optimizer states
schedule    processes, rollouts and optimizer steps
load        all of it: YAML and overrides -> a resolved TrainConfig
"""

from gtpo.config.load import load_config
from gtpo.config.schema import BuiltModel, HealthSection, ModelSection, TrainConfig

__all__ = ["BuiltModel", "HealthSection", "ModelSection", "TrainConfig", "load_config"]
