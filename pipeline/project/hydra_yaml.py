"""YAML as Hydra reads it: OmegaConf's own rules on top of YAML 1.1, parsed in C."""

from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader
from yaml.constructor import SafeConstructor
from yaml.cyaml import CParser
from yaml.resolver import Resolver


class _Loader(CParser, get_yaml_loader()):  # type: ignore[misc]
    """OmegaConf's loader with a parser in C, which is ten times as fast as the one in Python."""

    def __init__(self, source: str) -> None:
        CParser.__init__(self, source)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)


def as_hydra(source: str) -> Any:
    """Return the value of a YAML document, with interpolations unresolved.

    Raises:
        yaml.YAMLError: the document is not YAML 1.1.

    """
    value = yaml.load(source, Loader=_Loader)  # noqa: S506 - a safe loader
    return {value: None} if isinstance(value, str) else value  # Hydra takes a document of one text as a key
