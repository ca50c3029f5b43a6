"""YAML as DVC reads it: version 1.2, parsed in C."""

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.resolver import VersionedResolver


class _Fixed(VersionedResolver):
    """Resolver with a fixed version of YAML.

    The library determines the version again for every value, which takes a third of the time and always gives 1.2.
    """

    processing_version = (1, 2)


def parse_dvc_yaml(source: str | bytes) -> Any:
    """Parse a document.

    Raises:
        ruamel.yaml.error.YAMLError: the text is not YAML, or has a key twice.

    """
    reader = YAML(typ="safe")
    reader.Resolver = _Fixed
    return reader.load(source)
