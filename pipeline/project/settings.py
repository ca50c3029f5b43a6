"""The whole configuration as one model, and its validation: each mistake with path, value, allowed values and file."""

import difflib
import re
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from ruamel.yaml.error import YAMLError
from yaml import YAMLError as HydraYAMLError

from pipeline.core.dvc_yaml import parse_dvc_yaml
from pipeline.core.errors import ConfigError
from pipeline.core.files.contents import read_bytes
from pipeline.core.parse_errors import yaml_error_message
from pipeline.core.sections import Section, mistake, without_credentials
from pipeline.project.hydra_yaml import as_hydra
from pipeline.project.overrides import key_of, quotes_hint
from pipeline.stages.audit.config import AuditSection, ExpectSection, laid_over
from pipeline.stages.evaluate.config import EvaluateSection
from pipeline.stages.extract.config import EngineSection, ExtractSection, engine_fault
from pipeline.stages.generate.config import BudgetSection, ProviderSection, SamplingSection
from pipeline.stages.prompts.config import PromptsSection
from pipeline.stages.target.config import TargetSection
from pipeline.stages.train.config import TrainSection

CONF = Path("conf")
PARAMS = Path("params.yaml")

_SECRET = re.compile(r"\b(sk|hf|key)[-_][A-Za-z0-9_-]{16,}")


class DatasetSection(Section):
    """`conf/dataset/<name>.yaml`."""

    prompts: PromptsSection
    sampling: SamplingSection
    budget: BudgetSection
    send_tools: bool
    """The request offers the tools; else the model writes calls as text."""
    expect: ExpectSection
    audit: dict[str, Any]
    """This dataset's own values for keys of the section `audit`; the stage lays them over the shared ones."""


class BuildConfig(Section):
    """All of build/config.json."""

    names: list[str]
    """Datasets, sorted, so that their order in params.yaml changes nothing."""
    datasets: dict[str, DatasetSection]
    inputs: dict[str, str | None]
    """Dataset, or `evaluate`, to the digest of its prompt file, so that DVC sees a changed file as a changed param."""
    budget: BudgetSection
    target: TargetSection
    provider: ProviderSection
    audit: AuditSection
    extract: ExtractSection
    engine: EngineSection | None = Field(None, validate_default=True)
    """The chosen file under conf/extract/ sets it."""
    train: TrainSection
    evaluate: EvaluateSection

    @field_validator("engine")
    @classmethod
    def _goes_with_the_backend(cls, engine: EngineSection | None, info: ValidationInfo) -> EngineSection | None:
        if "extract" in info.data and (fault := engine_fault(info.data["extract"], engine)):
            raise ValueError(fault)
        return engine


def load_yaml(path: Path) -> Any:
    """Load YAML as DVC reads it (YAML 1.2).

    Raises:
        ConfigError: the file is not YAML.

    """
    return _parse_yaml(path, read_bytes(path))


def _parse_yaml(path: Path, source: bytes) -> Any:
    try:
        return parse_dvc_yaml(source.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    except YAMLError as error:
        raise ConfigError(yaml_error_message(path, source, error)) from error


def ambiguous_scalars(path: Path) -> list[str]:
    """Return the values that Hydra and DVC read differently (`on`, `010`, `12:30:45`), each with what to do."""
    return _ambiguous(path, read_bytes(path))


@cache
def _ambiguous(path: Path, source: bytes) -> list[str]:
    """As `ambiguous_scalars`; a process looks at the same text once."""
    dvc_value = _parse_yaml(path, source) or {}
    try:
        hydra_value = as_hydra(source.decode()) or {}
        differences = _differences(dvc_value, hydra_value, "")
    except HydraYAMLError as error:
        raise ConfigError(f"{path}: not the YAML 1.1 that Hydra reads: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: an alias (*) is inside the value that it repeats") from error
    return [
        f"{path}: {key}: Hydra reads {by_hydra!r}, DVC reads {by_dvc!r}: put quotes around it, or write it plainly"
        for key, by_dvc, by_hydra in differences
    ]


def _differences(a: Any, b: Any, key: str) -> list[tuple[str, Any, Any]]:
    """Return the leaves in which two documents differ: dotted key, both values."""
    if isinstance(a, dict) and isinstance(b, dict):
        if list(a) != list(b):
            return [(key or "keys", list(a), list(b))]
        return [leaf for name in a for leaf in _differences(a[name], b[name], f"{key}.{name}".lstrip("."))]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return [leaf for index, (x, y) in pairs for leaf in _differences(x, y, f"{key}[{index}]")]
    return [] if type(a) is type(b) and (a == b or repr(a) == repr(b)) else [(key, a, b)]


def secrets(value: Any, key: str = "") -> list[str]:
    """Return the dotted keys of strings that look like an API key, without the strings themselves."""
    if isinstance(value, dict):
        return [leak for name, item in value.items() for leak in secrets(item, f"{key}.{name}".lstrip("."))]
    if isinstance(value, list):
        return [leak for index, item in enumerate(value) for leak in secrets(item, f"{key}[{index}]")]
    return [key] if isinstance(value, str) and _SECRET.search(value) else []


def _origin(loc: tuple[Any, ...], choices: dict[str, str], overrides: list[str]) -> str:
    """Return the file, or the override, that set a composed value."""
    path = ".".join(map(str, loc))
    for override in overrides:
        key = key_of(override)
        if key and (path == key or path.startswith(f"{key}.") or key.startswith(f"{path}.")):
            return f"{PARAMS}, override {without_credentials(override)!r}"
    if loc and loc[0] == "datasets" and len(loc) > 1:
        return f"{CONF}/dataset/{loc[1]}.yaml"
    group = "extract" if loc and loc[0] == "engine" else loc[0] if loc else ""
    if group in choices:
        return f"{CONF}/{group}/{choices[group]}.yaml"
    return f"{CONF}/config.yaml"


def _known_keys(loc: tuple[Any, ...]) -> list[str]:
    """Return the keys that the model has beside the last one of a path; none if the path leaves the models."""
    in_own_audit = loc[:1] == ("datasets",) and loc[2:3] == ("audit",)
    model: type[Section] = BuildConfig
    for part in (loc[2:] if in_own_audit else loc)[:-1]:
        if part not in model.model_fields:
            continue  # a dataset's name
        annotation = model.model_fields[part].annotation
        members = [getattr(item, "__origin__", item) for item in getattr(annotation, "__args__", (annotation,))]
        sections = [item for item in members if isinstance(item, type) and issubclass(item, Section)]
        if not sections:
            return []
        model = sections[0]
    return sorted(model.model_fields)


def unknown_key(key: str, names: list[str]) -> str:
    """Return a message about a dotted key that conf/ does not have: its first unknown part, and similar keys.

    Args:
        key: as an override names it.
        names: the datasets of the build.

    """
    parts = key.split(".")
    for depth, part in enumerate(parts):
        parent, here = ".".join(parts[:depth]), tuple(parts[: depth + 1])
        known = names if here[:-1] == ("datasets",) else _known_keys(here)
        if depth == 0:
            known = sorted(set(known) - {"inputs", "names"})  # compose fills these
        if not known:
            return f"{parent} has no key {part!r}; if it takes keys of your own, write '+{key}=...'"
        if part not in known:
            similar = [f"{parent}.{name}".lstrip(".") for name in difflib.get_close_matches(part, known, 1)]
            if depth == 0:
                similar += [f"{section}.{part}" for section in known if part in _known_keys((section, part))]
            question = f". Did you mean {' or '.join(similar)}?" if similar else "."
            place = f"in {parent}" if depth else "sections"
            return f"there is no key {'.'.join(here)!r}{question} Known {place}: {known}"
    return f"no file in {CONF}/ sets this key; write '+{key}=...'"


def validate(tree: dict[str, Any], choices: dict[str, str], overrides: list[str]) -> BuildConfig:
    """Check the composed tree against the section models.

    Raises:
        ConfigError: one message names every mistake by dotted path, value, allowed values, and file.

    """
    config, faults = None, list[Any]()
    try:
        config = BuildConfig.model_validate(tree)
    except ValidationError as error:
        faults = list(error.errors())
    faults += _audit_faults(tree, {fault["loc"] for fault in faults})
    faults += _long_numbers(tree, ())
    if config is not None and not faults:
        return config
    lines = []
    for fault in faults:
        loc = fault["loc"]
        allowed = f"; known here: {_known_keys(loc)}" if fault["type"] == "extra_forbidden" else ""
        origin = _origin(loc, choices, overrides)
        lines.append(f"{mistake(fault)}{allowed}  [{origin}]{_text_hint(fault, overrides)}")
    count = f"{len(lines)} mistakes" if len(lines) > 1 else "1 mistake"
    raise ConfigError(f"the configuration has {count}:\n  " + "\n  ".join(lines))


def _text_hint(fault: Any, overrides: list[str]) -> str:
    """Return advice about quotes if an override gives a number, a list or a mapping to a key that takes a text."""
    path = ".".join(map(str, fault["loc"]))
    matching = [override for override in overrides if key_of(override) == path]
    if fault["type"] != "string_type" or fault["input"] is None or not matching:
        return ""
    return quotes_hint(matching[-1], "params.yaml", "a text that looks like another value wants quotes")


def _long_numbers(value: Any, loc: tuple[Any, ...]) -> list[Any]:
    """Return a fault for each whole number that neither JSON nor the ledger can hold."""
    if isinstance(value, dict):
        return [fault for key, item in value.items() for fault in _long_numbers(item, (*loc, key))]
    if isinstance(value, list):
        return [fault for index, item in enumerate(value) for fault in _long_numbers(item, (*loc, index))]
    fits = not isinstance(value, int) or -(2**63) <= value < 2**63
    return [] if fits else [{"loc": loc, "type": "int_size", "msg": "a whole number must fit 64 bits", "input": value}]


def _audit_faults(tree: dict[str, Any], known: set[tuple[Any, ...]]) -> list[Any]:
    """Return the mistakes in the audit keys of each dataset.

    Args:
        tree: the composed configuration.
        known: paths of the mistakes found so far; those in the shared section are not repeated for each dataset.

    """
    faults = list[Any]()
    for name, dataset in tree["datasets"].items():
        own = dataset.get("audit") if isinstance(dataset, dict) else None
        if isinstance(own, dict) and isinstance(tree.get("audit"), dict):
            try:
                AuditSection.model_validate(laid_over(tree["audit"], own))
            except ValidationError as error:
                here = ("datasets", name, "audit")
                faults += [
                    {**fault, "loc": (*here, *fault["loc"])}
                    for fault in error.errors()
                    if ("audit", *fault["loc"]) not in known
                ]
    return faults
