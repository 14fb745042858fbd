"""The config of a training run: schema, loading, flags, the published dialect, help. Free of torch.

schema      TrainConfig: every key typed, ranged and documented
load        YAML (with `extends`) + overrides -> TrainConfig; every error names its key, file and line
flags       `--section.key value` and the published shortcuts -> overrides
published   the authors' own config files: their paths and values mapped to ours, each with a printed line
resolve     what follows from other keys: objective, group-complete batches, 32-bit optimizer states
reference   `gtpo train --help-config` and docs/config.md, generated from the schema
"""

from gtpo.config.load import load_config
from gtpo.config.schema import BuiltModel, HealthSection, ModelSection, TrainConfig

__all__ = ["BuiltModel", "HealthSection", "ModelSection", "TrainConfig", "load_config"]
