"""YAML as Hydra reads it: OmegaConf's own rules on top of YAML 1.1, in C. Apart from `yamls.py`, since OmegaConf takes long to import."""

from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader
from yaml.constructor import SafeConstructor
from yaml.cyaml import CParser
from yaml.resolver import Resolver


class _Loader(CParser, get_yaml_loader()):  # type: ignore[misc]
    """OmegaConf's loader, ten times as fast as in Python."""

    def __init__(self, source: str) -> None:
        CParser.__init__(self, source)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)


def as_hydra(source: str) -> Any:
    """Value of a document, interpolations as they stand.

    Raises:
        yaml.YAMLError: it is no YAML 1.1.

    """
    found = yaml.load(source, Loader=_Loader)  # noqa: S506 - a safe loader
    return {found: None} if isinstance(found, str) else found  # of a text alone Hydra makes a key
