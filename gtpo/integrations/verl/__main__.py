"""`python -m gtpo.integrations.verl`: verl's own entry point with everything checked before Ray starts.

    python -m gtpo.integrations.verl --config-dir configs/verl --config-name gsm8k-gtpo-1x8 [KEY=VALUE ...]

Arguments are Hydra's. `python -m verl.trainer.main_ppo` works too, but logs a plugin that cannot be imported at level
DEBUG, and checks settings after Ray has started.
"""

from __future__ import annotations

import os
from typing import Any

from gtpo.common.errors import UserError, did_you_mean, explained
from gtpo.integrations.verl.settings import TRAINER_MODE, check_settings

TRAINER_MODULE = "gtpo.integrations.verl.trainer"
# verl imports the modules that this variable names, in every process, and fails if it cannot.
EXTERNAL_MODULES = "VERL_USE_EXTERNAL_MODULES"


def check_config(config: Any) -> None:
    """Raise UserError if the composed config names no trainer of verl's, or a GTPO that it cannot run."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    from gtpo.integrations.verl.trainer import GTPOTrainerSync

    mode = config.trainer.v1.trainer_mode
    if mode not in TRAINER_REGISTRY:
        known = ", ".join(sorted(TRAINER_REGISTRY))
        raise UserError(
            f'trainer.v1.trainer_mode "{mode}" is not known.{did_you_mean(mode, TRAINER_REGISTRY)} Known: {known}'
        )
    if issubclass(TRAINER_REGISTRY[mode], GTPOTrainerSync):
        check_settings(OmegaConf.to_container(config, resolve=True))
    elif config.get("gtpo") is not None:
        raise UserError(
            f"the section gtpo has no effect with trainer.v1.trainer_mode {mode}; set it to {TRAINER_MODE} or drop gtpo"
        )
    # Workers on other nodes do not inherit this process's environment.
    variable = f"ray_kwargs.ray_init.runtime_env.env_vars.{EXTERNAL_MODULES}"
    OmegaConf.update(config, variable, os.environ[EXTERNAL_MODULES], force_add=True)


def main() -> None:
    """Register our trainer with verl, here and in its workers; check; start verl."""
    with explained():
        named = [name for name in os.environ.get(EXTERNAL_MODULES, "").split(",") if name]
        os.environ[EXTERNAL_MODULES] = ",".join(dict.fromkeys([*named, TRAINER_MODULE]))
        try:
            # First: it imports the modules that the variable names, and one of the user's may import our trainer.
            import verl.trainer.ppo.v1  # noqa: F401

            import gtpo.integrations.verl.trainer  # noqa: F401  # it registers itself
        except ImportError as error:
            raise UserError(
                f"the GTPO trainer for verl could not be imported ({error}); pip install 'gtpo[verl]' in an "
                "environment of its own"
            ) from None
    import hydra
    from verl.trainer import main_ppo

    def run(config: Any) -> None:
        with explained():
            check_config(config)
        main_ppo.main.__wrapped__(config)

    hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)(run)()


if __name__ == "__main__":
    main()
