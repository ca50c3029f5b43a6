"""conf/ to build/config.json (composed, validated, resolved) and build/code.json: the only importer of Hydra."""

from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.errors import ConfigError
from pipeline.target.config import TargetSection

CONF = Path("conf")


def compose_tree(name: str, overrides: list[str], conf: Path = CONF) -> dict[str, Any]:
    """Compose one config and resolve it once; a resolver with a changing value is asked only here.

    Raises:
        ConfigError: Hydra cannot find, parse or resolve it; the message is Hydra's own.

    """
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(conf.resolve()), version_base="1.3"):
            tree = compose(name, overrides=overrides)
        OmegaConf.resolve(tree)
        return dict(OmegaConf.to_container(tree))  # type: ignore[arg-type]
    except (HydraException, OmegaConfBaseException) as error:
        cause = f"\n  {error.__cause__}" if error.__cause__ else ""
        raise ConfigError(f"{conf}/{name}.yaml cannot be composed: {error}{cause}") from error


def target_section(name: str) -> TargetSection:
    """Section of conf/target/<name>.yaml, alone.

    Raises:
        ConfigError: there is no such target, or it is not valid.

    """
    known = sorted(path.stem for path in (CONF / "target").glob("*.yaml"))
    if name not in known:
        raise ConfigError(f"no target {name!r}: {CONF}/target/ has {known}")
    return TargetSection.model_validate(compose_tree(f"target/{name}", [])["target"])
