"""The whole configuration as one model, and what can be wrong with it: every mistake with its path, value, what is allowed and its file."""

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
    """Whether the request offers the tools; if not, the model writes calls as text."""
    expect: ExpectSection
    audit: dict[str, Any]
    """Keys of the audit's section for which this dataset has its own value; the stage lays them over the shared ones."""


class BuildConfig(Section):
    """All of build/config.json."""

    names: list[str]
    """Datasets, sorted: their order is no input of the build."""
    datasets: dict[str, DatasetSection]
    inputs: dict[str, str | None]
    """Dataset, or `evaluate`, to the digest of its prompt file: DVC sees a changed file as a changed param."""
    budget: BudgetSection
    target: TargetSection
    provider: ProviderSection
    audit: AuditSection
    extract: ExtractSection
    engine: EngineSection | None = Field(None, validate_default=True)
    """Set by the file under conf/extract/ that was chosen."""
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
        ConfigError: it is no YAML.

    """
    return _parse_yaml(path, read_bytes(path))


def _parse_yaml(path: Path, source: bytes) -> Any:
    try:
        return parse_dvc_yaml(source.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is no UTF-8; save the file as UTF-8") from error
    except YAMLError as error:
        raise ConfigError(yaml_error_message(path, source, error)) from error


def ambiguous_scalars(path: Path) -> list[str]:
    """Values that Hydra and DVC read differently (`on`, `010`, `12:30:45`), each with what to do."""
    return _ambiguous(path, read_bytes(path))


@cache
def _ambiguous(path: Path, source: bytes) -> list[str]:
    """As `ambiguous_scalars`; the same text is looked at once a process."""
    ours = _parse_yaml(path, source) or {}
    try:
        theirs = as_hydra(source.decode()) or {}
        differences = _differences(ours, theirs, "")
    except HydraYAMLError as error:
        raise ConfigError(f"{path}: not the YAML 1.1 that Hydra reads: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: an alias (*) stands within the value that it repeats") from error
    return [
        f"{path}: {where}: Hydra reads {b!r}, DVC reads {a!r}: put quotes around it, or write it plainly"
        for where, a, b in differences
    ]


def _differences(a: Any, b: Any, where: str) -> list[tuple[str, Any, Any]]:
    if isinstance(a, dict) and isinstance(b, dict):
        if list(a) != list(b):
            return [(where or "keys", list(a), list(b))]
        return [found for key in a for found in _differences(a[key], b[key], f"{where}.{key}".lstrip("."))]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [
            found for n, (x, y) in enumerate(zip(a, b, strict=True)) for found in _differences(x, y, f"{where}[{n}]")
        ]
    return [] if type(a) is type(b) and (a == b or repr(a) == repr(b)) else [(where, a, b)]


def secrets(value: Any, where: str = "") -> list[str]:
    """Dotted paths of strings that look like an API key; the value itself is not repeated."""
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in secrets(item, f"{where}.{key}".lstrip("."))]
    if isinstance(value, list):
        return [found for n, item in enumerate(value) for found in secrets(item, f"{where}[{n}]")]
    return [where] if isinstance(value, str) and _SECRET.search(value) else []


def _origin(loc: tuple[Any, ...], choices: dict[str, str], overrides: list[str]) -> str:
    """Tell the file, or the override, that a composed value came from."""
    path = ".".join(map(str, loc))
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key and (path == key or path.startswith(f"{key}.") or key.startswith(f"{path}.")):
            return f"{PARAMS}, override {without_credentials(override)!r}"
    if loc and loc[0] == "datasets" and len(loc) > 1:
        return f"{CONF}/dataset/{loc[1]}.yaml"
    group = "extract" if loc and loc[0] == "engine" else loc[0] if loc else ""
    if group in choices:
        return f"{CONF}/{group}/{choices[group]}.yaml"
    return f"{CONF}/config.yaml"


def _own_audit(loc: tuple[Any, ...]) -> bool:
    """Whether a path leads into a dataset's own keys of the audit's section."""
    return loc[:1] == ("datasets",) and loc[2:3] == ("audit",)


def _known_keys(loc: tuple[Any, ...]) -> list[str]:
    """Keys that the model has where an unknown one was found."""
    model: Any = BuildConfig
    for part in (loc[2:] if _own_audit(loc) else loc)[:-1]:
        annotation = (
            model.model_fields[part].annotation
            if isinstance(model, type) and issubclass(model, Section) and part in model.model_fields
            else None
        )
        inner = [
            getattr(item, "__origin__", item) for item in getattr(annotation, "__args__", (annotation,))
        ]  # the types within Annotated
        model = next(
            (item for item in inner if isinstance(item, type) and issubclass(item, Section)),
            model if annotation is None else None,
        )
        if model is None:
            return []
    return sorted(model.model_fields)


def unknown_key(key: str, names: list[str]) -> str:
    """Say where a dotted key that conf/ does not have leaves the known ones, and which one may be meant.

    Args:
        key: as an override names it.
        names: the datasets of the build.

    """
    parts = key.split(".")
    for n, part in enumerate(parts):
        before, here = ".".join(parts[:n]), tuple(parts[: n + 1])
        known = names if here[:-1] == ("datasets",) else _known_keys(here)
        if not n:
            known = sorted(set(known) - {"inputs", "names"})  # compose fills these
        if not known:
            return f"{before} has no key {part!r}; if it takes keys of your own, write '+{key}=...'"
        if part not in known:
            near = [f"{before}.{name}".lstrip(".") for name in difflib.get_close_matches(part, known, 1)]
            near += [] if n else [f"{section}.{part}" for section in known if part in _known_keys((section, part))]
            meant = f". Did you mean {' or '.join(near)}?" if near else "."
            return f"there is no key {'.'.join(here)!r}{meant} Known {f'in {before}' if n else 'sections'}: {known}"
    return f"no file in {CONF}/ sets this key; write '+{key}=...'"


def validate(tree: dict[str, Any], choices: dict[str, str], overrides: list[str]) -> BuildConfig:
    """Check the composed tree against the section models.

    Raises:
        ConfigError: one message names every mistake by dotted path, value, what is allowed, and the file it came from.

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
        lines.append(f"{mistake(fault)}{allowed}  [{_origin(loc, choices, overrides)}]")
    count = f"{len(lines)} mistakes" if len(lines) > 1 else "1 mistake"
    raise ConfigError(f"the configuration has {count}:\n  " + "\n  ".join(lines))


def _long_numbers(value: Any, loc: tuple[Any, ...]) -> list[Any]:
    """Whole numbers that neither JSON nor the ledger can hold."""
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in _long_numbers(item, (*loc, key))]
    if isinstance(value, list):
        return [found for n, item in enumerate(value) for found in _long_numbers(item, (*loc, n))]
    fits = not isinstance(value, int) or -(2**63) <= value < 2**63
    return [] if fits else [{"loc": loc, "type": "int_size", "msg": "a whole number must fit 64 bits", "input": value}]


def _audit_faults(tree: dict[str, Any], known: set[tuple[Any, ...]]) -> list[Any]:
    """Mistakes in what datasets lay over the shared section of the audit; those of the shared section itself are ``known``."""
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
