"""YAML as DVC reads it: version 1.2, in C."""

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.resolver import VersionedResolver


class _Fixed(VersionedResolver):
    """The library works the version out anew for every value, in C always with the same result; that is a third of the time."""

    processing_version = (1, 2)


def as_dvc(source: str | bytes) -> Any:
    """Value of a document.

    Raises:
        ruamel.yaml.error.YAMLError: it is no YAML, or names a key twice.

    """
    reader = YAML(typ="safe")
    reader.Resolver = _Fixed
    return reader.load(source)
