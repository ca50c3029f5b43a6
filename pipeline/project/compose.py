"""conf/ to build/config.json (composed, validated, resolved) and build/code.json: the only importer of Hydra but for sweeps.

`dvc repro` does not compose Hydra configs, so this is the first stage: it depends on conf/, pipeline/, data/ and the two
keys of params.yaml, and every other stage takes the keys that it reads from build/config.json, as DVC params.
"""

import io
import re
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from ruamel.yaml import YAML
from yaml import YAMLError

from pipeline.core.code.fingerprint import fingerprints
from pipeline.core.errors import ConfigError
from pipeline.core.files.atomic import write_bytes
from pipeline.core.files.digests import sha256_file
from pipeline.core.files.json_file import to_json
from pipeline.core.process.garbage_collection import no_collector
from pipeline.core.sections import mistake
from pipeline.graph import STAGES
from pipeline.project.settings import (
    CONF,
    PARAMS,
    BuildConfig,
    ambiguous_scalars,
    load_yaml,
    secrets,
    unknown_key,
    validate,
)
from pipeline.stages.target.config import TargetSection

BUILD = Path("build")
RESERVED = frozenset({"target", "drafter", "extracted", "evaluate"})
"""Names that build/ and build/config.json use for something else."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\Z")

_SHOWN = 8
"""Mistakes of a sweep that are shown."""

_UNKNOWN = re.compile(r"Could not (?:override|delete from config\.) '([^']+)'")
_NO_CHOICE = re.compile(r"Could not find '(([^']+)/[^']*)'")


class Params(NamedTuple):
    """params.yaml: what to build."""

    datasets: list[str]
    overrides: list[str]


def read_params(path: Path = PARAMS) -> Params:
    """Read params.yaml.

    Raises:
        ConfigError: missing or malformed; every mistake is named.

    """
    if not path.exists():
        raise ConfigError(
            f"{path} is missing: it names the datasets to build, for example `datasets: [reasoning]` and `overrides: []`"
        )
    found = load_yaml(path)
    if not isinstance(found, dict) or set(found) != {"datasets", "overrides"}:
        has = sorted(found) if isinstance(found, dict) else found
        raise ConfigError(f"{path}: needs exactly the keys `datasets` and `overrides` (lists); found {has}")
    names, overrides = found["datasets"], found["overrides"]
    faults = []
    if not isinstance(names, list) or not names:
        faults.append(f"datasets: needs a list with at least one name; found {names!r}")
        names = []
    for name in names:
        if not isinstance(name, str) or not _NAME.match(name):
            faults.append(f"datasets: {name!r} is no dataset name: a letter, then letters, digits, _ or -")
        elif name in RESERVED:
            faults.append(f"datasets: {name!r} is taken by the build itself; other such names: {sorted(RESERVED)}")
        elif not (CONF / "dataset" / f"{name}.yaml").exists():
            there = sorted(file.stem for file in (CONF / "dataset").glob("*.yaml"))
            faults.append(f"datasets: {name!r} has no file {CONF}/dataset/{name}.yaml; there are {there}")
    if repeated := sorted({str(name) for name in names if names.count(name) > 1}):
        faults.append(f"datasets: named more than once: {repeated}")
    if not isinstance(overrides, list) or not all(isinstance(override, str) for override in overrides):
        faults.append(f"overrides: needs a list of strings such as 'train.lr=3e-4'; found {overrides!r}")
    else:
        own = [override for override in overrides if override.lstrip("+~").startswith(("hydra.", "hydra/"))]
        faults += [
            f"overrides: {override!r} sets up Hydra itself, which changes no build; leave it out" for override in own
        ]
    if faults:
        raise ConfigError(f"{path}:\n  " + "\n  ".join(faults))
    return Params(names, overrides)


def compose_tree(name: str, overrides: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Compose one config and resolve it once; a resolver with a changing value is asked only here.

    Returns the tree, and which file was chosen in each group.

    Raises:
        ConfigError: Hydra cannot find, parse or resolve it.

    """
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(CONF.resolve()), version_base="1.3"):
            tree = compose(name, overrides=overrides, return_hydra_config=True)
        choices = dict(tree.hydra.runtime.choices)
        OmegaConf.set_struct(tree, False)
        del tree["hydra"]
        OmegaConf.resolve(tree)
        if missing := sorted(map(str, OmegaConf.missing_keys(tree))):
            raise ConfigError(f"{CONF}/: values still to be given (???): {', '.join(missing)}")
        return dict(OmegaConf.to_container(tree)), choices  # type: ignore[arg-type]
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(refusal(error, overrides)) from error


def refusal(error: Exception, overrides: list[str]) -> str:
    """Why Hydra cannot compose: of an unknown key or choice in our words, which name the override and what there is; else its own.

    Hydra's hint at `+` would only lead to the next mistake: no section takes a key that it does not know.
    """
    if (found := _NO_CHOICE.search(str(error))) and (CONF / found[2]).is_dir():
        there = sorted(file.stem for file in (CONF / found[2]).glob("*.yaml"))
        return f"there is no {CONF}/{found[1]}.yaml; {CONF}/{found[2]}/ has {there}{_by(found[2], overrides)}"
    if found := _UNKNOWN.search(str(error)):
        key = found[1]
        if {"/", "@"} & set(key):
            groups = sorted(
                folder.name
                for folder in CONF.iterdir()
                if folder.is_dir() and folder.name not in ("dataset", "recipes")
            )
            return f"no config group {key!r} to choose from; groups: {groups}; a value is set with dots, as in train.lr=3e-4{_by(key, overrides)}"
        names = [match[1] for override in overrides if (match := re.match(r"\+dataset@datasets\.([^=]+)=", override))]
        return f"{unknown_key(key, names)}{_by(key, overrides)}"
    cause = f"\n  {error.__cause__}" if error.__cause__ else ""
    return f"{CONF}/ cannot be composed: {str(error).partition('Config search path')[0].rstrip()}{cause}"


def _by(key: str, overrides: list[str]) -> str:
    """Name the override that sets ``key``, when there is one."""
    given = [override for override in overrides if override.lstrip("+~").partition("=")[0] == key]
    return f"  [override {given[-1]!r}]" if given else ""


def check_grammar(overrides: list[str]) -> None:
    """Parse each override by itself, since Hydra's own message does not say which one it means.

    Raises:
        ConfigError: one does not parse.

    """
    parser = OverridesParser.create()
    for override in overrides:
        if not override.lstrip("+~").partition("=")[0].strip():
            raise ConfigError(f"override {override!r} sets no key: write KEY=VALUE")
        try:
            parser.parse_override(override)
        except HydraException as error:
            raise ConfigError(f"override {override!r} does not parse: {str(error).splitlines()[0]}") from error


def jobs_of(arguments: list[str]) -> list[list[str]]:
    """Overrides of each job that Hydra's own sweeper makes of a sweep's overrides.

    Raises:
        ConfigError: they do not parse, or it cannot sweep over one of them.

    """
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(CONF.resolve()), version_base="1.3"):
            parser = OverridesParser.create(GlobalHydra.instance().config_loader())
            batch: list[list[str]] = BasicSweeper.split_arguments(parser.parse_overrides(arguments), None)[0]
    except HydraException as error:
        raise ConfigError(refusal(error, arguments)) from error
    return batch


def check_jobs(datasets: list[str], jobs: list[list[str]]) -> str | None:
    """Compose and validate the build of each job of a sweep; say in how many something is wrong, and each mistake once.

    Raises:
        ConfigError: the same, when there is something wrong in every job.

    """
    wrong, faults = 0, dict[str, None]()
    for job in jobs:
        try:
            build_config(Params(datasets, job))
        except ConfigError as error:
            wrong += 1
            title, *mistakes = str(error).splitlines()
            faults |= dict.fromkeys(line.strip() for line in mistakes or [title])
    if not faults:
        return None
    shown = list(faults)[:_SHOWN] + ([f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else [])
    said = f"{wrong} of {len(jobs)} jobs cannot be built:\n  " + "\n  ".join(shown)
    if wrong == len(jobs):
        raise ConfigError(said)
    return said


def target_section(name: str) -> TargetSection:
    """Section of conf/target/<name>.yaml, alone.

    Raises:
        ConfigError: there is no such target, or it is not valid.

    """
    known = sorted(path.stem for path in (CONF / "target").glob("*.yaml"))
    if name not in known:
        raise ConfigError(f"no target {name!r}: {CONF}/target/ has {known}")
    load_yaml(CONF / "target" / f"{name}.yaml")  # or Hydra meets what is no YAML, and raises its parser's error
    tree, _ = compose_tree(f"target/{name}", [])
    try:
        return TargetSection.model_validate(tree["target"])
    except ValidationError as error:
        raise ConfigError(f"{CONF}/target/{name}.yaml:\n  " + "\n  ".join(map(mistake, error.errors()))) from error


def _digest(path: str, where: str, *, hub: bool) -> str | None:
    """Digest of a prompt file, which must lie under data/, so that DVC sees it change; a hub dataset is known by its pinned revision."""
    if path.startswith("hf://"):
        if not hub:
            raise ConfigError(
                f"{where} is {path!r}: it must be a file under data/; save the hub dataset's prompts there"
            )
        return None
    file = Path(path)
    if file.is_absolute() or ".." in file.parts or file.parts[:1] != ("data",):
        raise ConfigError(
            f"{where} is {path!r}: a prompt file must lie under data/ (put it or link it there), or DVC cannot see it change"
        )
    if not file.is_file():
        kept = file.with_name(f"{file.name}.dvc").is_file()
        absent = f"only {path}.dvc is here: `dvc pull {path}` brings it" if kept else "there is no such file"
        raise ConfigError(f"{where} is {path!r}, and {'that is a folder: name one file' if file.is_dir() else absent}")
    return sha256_file(file)


@no_collector()
def build_config(params: Params) -> BuildConfig:
    """Compose and validate the whole build.

    Raises:
        ConfigError: with everything that is wrong.

    """
    if faults := [fault for path in sorted(CONF.rglob("*.yaml")) for fault in ambiguous_scalars(path)]:
        raise ConfigError("values that Hydra and DVC read differently:\n  " + "\n  ".join(faults))
    check_grammar(params.overrides)
    if several := [
        override
        for override in params.overrides
        if OverridesParser.create().parse_override(override).is_sweep_override()
    ]:
        raise ConfigError(
            f"{several} give several values for one build: `python -m pipeline.sweep -m` runs one build for each; a list is written KEY=[A,B]"
        )
    names = sorted(params.datasets)
    groups = [f"+dataset@datasets.{name}={name}" for name in names]
    tree, choices = compose_tree("config", [*groups, *params.overrides])
    if found := secrets(tree):
        raise ConfigError(
            f"these values look like API keys: {', '.join(found)}. A key is read from the environment; name its variable in provider.api_key_env."
        )
    there = tree.get("datasets")
    if gone := sorted(set(names) - set(there if isinstance(there, dict) else ())):
        raise ConfigError(
            f"{PARAMS}: an override takes away what `datasets` names: {gone}; take it out of `datasets` instead"
        )
    if extra := sorted(set(tree["datasets"]) - set(names)):
        raise ConfigError(f"{PARAMS}: overrides speak of datasets that `datasets` does not name: {extra}")
    for name in names:
        dataset = tree["datasets"][name]
        if isinstance(dataset, dict):
            dataset["audit"] = dataset.get("audit") or {}
    config = validate({**tree, "names": names, "inputs": {}}, choices, params.overrides)
    return config.model_copy(update={"inputs": _inputs(config)})


def _inputs(config: BuildConfig) -> dict[str, str | None]:
    """Digest of every prompt file."""
    files = {name: (dataset.prompts.path, f"datasets.{name}.prompts.path") for name, dataset in config.datasets.items()}
    files["evaluate"] = (config.evaluate.path, "evaluate.path")
    inputs, faults = dict[str, str | None](), list[str]()
    for name, (path, where) in files.items():
        try:
            inputs[name] = _digest(path, where, hub=name != "evaluate")
        except ConfigError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError(
            "\n  ".join(faults if len(faults) == 1 else [f"{len(faults)} prompt files cannot be used:", *faults])
        )
    return inputs


def _as_yaml(config: BuildConfig) -> str:
    text = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 160
    yaml.dump(config.model_dump(mode="json"), text)
    return f"# Written by `python -m pipeline compose` for people to read; stages read config.json. Edit {CONF}/ and {PARAMS} instead.\n{text.getvalue()}"


def forget_removed(names: list[str]) -> list[Path]:
    """Remove the files kept in git of datasets that params.yaml no longer names: train must not see their stamps."""
    kept = {template for stage in STAGES if stage.per_dataset for template in stage.kept_in_git()}
    gone = []
    for template in sorted(kept):
        pattern = re.compile(re.escape(template).replace(r"\{d\}", "([^/]+)") + r"\Z")
        for path in BUILD.parent.glob(template.format(d="*")):
            match = pattern.match(path.as_posix())
            if match and match[1] not in names and match[1] not in RESERVED:
                path.unlink()
                gone.append(path)
    return gone


@no_collector()
def documents(params: Params) -> tuple[BuildConfig, dict[Path, bytes]]:
    """Give the composed config, and the bytes of each file that `main` writes; nothing is written here.

    Raises:
        ConfigError: conf/, params.yaml or the code cannot be built from.

    """
    config = build_config(params)
    code = fingerprints(Path(), [stage.name for stage in STAGES])
    return config, {
        BUILD / "config.json": to_json(config, indent=True) + b"\n",
        BUILD / "config.yaml": _as_yaml(config).encode(),
        BUILD / "code.json": to_json(code, indent=True) + b"\n",
    }


def write_documents() -> BuildConfig:
    """Write build/config.json, build/config.yaml and build/code.json, and return the configuration.

    Raises:
        ConfigError: conf/, params.yaml or the code cannot be built from; nothing is written.

    """
    config, files = documents(read_params())
    for path, content in files.items():
        write_bytes(path, content)
    return config
