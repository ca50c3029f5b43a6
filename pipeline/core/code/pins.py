"""Pins: the versions of third-party packages in requirements.lock."""

import sys
from collections.abc import Mapping, Set
from pathlib import Path

from pipeline.core.code.modules import PACKAGE
from pipeline.core.errors import ConfigError
from pipeline.core.files.contents import read_bytes

DISTRIBUTIONS = {
    "attr": "attrs",
    "dotenv": "python-dotenv",
    "httpx_aiohttp": "httpx-aiohttp",
    "hydra": "hydra-core",
    "ruamel": "ruamel.yaml",
    "splintr": "splintr-rs",
    "yaml": "pyyaml",
}
"""Import name to the name on the package index, where they differ."""

OPTIONAL = frozenset({"datasets"})
"""Imports of extras, which the lock does not pin: a build without the extra never reaches them."""


def read_pins(lock: Path) -> dict[str, str]:
    """Read the versions in a requirements.lock, by normalized name.

    Raises:
        ArtifactError: the file is missing.
        ConfigError: a line is not `name==version`.

    """
    pins = {}
    for number, line in enumerate(read_bytes(lock).decode().split("\n"), 1):
        text = line.split("#")[0].strip()
        if not text:
            continue
        name, equals, version = text.partition("==")
        if not equals:
            raise ConfigError(f"{lock}:{number}: expected name==version, found {text!r}")
        pins[_normalized(name)] = version.split(";")[0].strip()
    return pins


def libraries(reached: Mapping[str, Set[str]], pins: dict[str, str]) -> dict[str, str]:
    """Return the pins of the third-party packages that a closure imports.

    Raises:
        ConfigError: one of the packages is not pinned.

    """
    packages = (
        {name.split(".")[0] for names in reached.values() for name in names}
        - {PACKAGE, ""}
        - set(sys.stdlib_module_names)
        - OPTIONAL
    )
    found = {}
    for package in sorted(packages):
        name = _normalized(DISTRIBUTIONS.get(package, package))
        if name not in pins:
            users = sorted(
                module for module, names in reached.items() if any(n.split(".")[0] == package for n in names)
            )
            raise ConfigError(
                f"{', '.join(users)} imports {package!r}, which requirements.lock does not pin (looked for {name!r})"
            )
        found[name] = pins[name]
    return found


def _normalized(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")
