"""YAML as its two readers understand it: DVC by YAML 1.2, Hydra by rules of its own on top of YAML 1.1. Both here in C, with those rules."""

from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader
from ruamel.yaml import YAML
from ruamel.yaml.resolver import VersionedResolver
from yaml.constructor import SafeConstructor
from yaml.cyaml import CParser
from yaml.resolver import Resolver


class _Fixed(VersionedResolver):
    """The library works the version out anew for every value, in C always with the same result; that is a third of the time."""

    processing_version = (1, 2)


def as_dvc(source: str | bytes) -> Any:
    """Value of a document as DVC reads it.

    Raises:
        ruamel.yaml.error.YAMLError: it is no YAML, or names a key twice.

    """
    reader = YAML(typ="safe")
    reader.Resolver = _Fixed
    return reader.load(source)


class _HydraLoader(CParser, get_yaml_loader()):  # type: ignore[misc]
    """OmegaConf's rules, ten times as fast as in Python."""

    def __init__(self, source: str) -> None:
        CParser.__init__(self, source)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)


def as_hydra(source: str) -> Any:
    """Value of a document as Hydra reads it, interpolations as they stand.

    Raises:
        yaml.YAMLError: it is no YAML 1.1.

    """
    found = yaml.load(source, Loader=_HydraLoader)  # noqa: S506 - a safe loader
    return {found: None} if isinstance(found, str) else found  # of a text alone Hydra makes a key
