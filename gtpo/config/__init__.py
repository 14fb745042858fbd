"""The config of a training run: schema, loading, flags, the published dialect, help. Free of torch."""

from gtpo.config.load import load_config as load_config
from gtpo.config.schema import BuiltModel as BuiltModel
from gtpo.config.schema import HealthSection as HealthSection
from gtpo.config.schema import ModelSection as ModelSection
from gtpo.config.schema import TrainConfig as TrainConfig
