"""conf/ and params.yaml composed into build/config.json, build/config.yaml and build/code.json.

`dvc repro` does not compose Hydra configs, so this is the first stage. It depends on conf/, pipeline/, data/ and the
two keys of params.yaml; every other stage takes the keys that it reads from build/config.json, as DVC params.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
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
from pipeline.formats.build_folder import BUILD, CODE, CONFIG
from pipeline.graph import STAGES
from pipeline.project.overrides import check_grammar, is_sweep, key_of, quotes_hint, sweep_jobs
from pipeline.project.params import RESERVED, Params, read_params
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

_LISTED_MISTAKES = 8
"""Mistakes of a sweep that a message lists; it counts the others."""

_UNKNOWN_KEY = re.compile(r"Could not (?:override|delete from config\.) '([^']+)'")
_UNKNOWN_CHOICE = re.compile(r"Could not find '(([^']+)/[^']*)'")
_DATASET_CHOICE = re.compile(r"\+dataset@datasets\.([^=]+)=")
_NOT_A_GROUP = ("dataset", "recipes")
"""Folders of conf/ whose files no override chooses."""


def dataset_choices(names: list[str]) -> list[str]:
    """Return the overrides that put each dataset's file below `datasets`."""
    return [f"+dataset@datasets.{name}={name}" for name in sorted(names)]


@contextmanager
def _hydra_of_conf() -> Iterator[None]:
    """Let Hydra read conf/; its state is global."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(CONF.resolve()), version_base="1.3"):
        yield


def compose_tree(name: str, overrides: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Compose one config file and resolve its interpolations once, here only, since a resolver's value may change.

    Returns the tree, and the file that was chosen in each group.

    Raises:
        ConfigError: Hydra cannot find, parse or resolve it.

    """
    try:
        with _hydra_of_conf():
            tree = compose(name, overrides=overrides, return_hydra_config=True)
        choices = dict(tree.hydra.runtime.choices)
        OmegaConf.set_struct(tree, False)
        del tree["hydra"]
        OmegaConf.resolve(tree)
        if missing := sorted(map(str, OmegaConf.missing_keys(tree))):
            raise ConfigError(f"{CONF}/: these values are still to be given (???): {', '.join(missing)}")
        return dict(OmegaConf.to_container(tree)), choices  # type: ignore[arg-type]
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(composition_fault(error, overrides)) from error


def composition_fault(error: Exception, overrides: list[str]) -> str:
    """Return the reason why Hydra cannot compose.

    For an unknown key or choice the message names the override and what there is. Hydra's own message would advise `+`,
    which leads to the next mistake only: no section takes a key that it does not know.
    """
    if (match := _UNKNOWN_CHOICE.search(str(error))) and (CONF / match[2]).is_dir():
        known = sorted(file.stem for file in (CONF / match[2]).glob("*.yaml"))
        return f"there is no {CONF}/{match[1]}.yaml; {CONF}/{match[2]}/ has {known}{_cited(match[2], overrides)}"
    if match := _UNKNOWN_KEY.search(str(error)):
        key = match[1]
        if {"/", "@"} & set(key):
            groups = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())
            groups = [group for group in groups if group not in _NOT_A_GROUP]
            return (
                f"there is no config group {key!r} to choose from; groups: {groups}; "
                f"a value is set with dots, as in train.lr=3e-4{_cited(key, overrides)}"
            )
        names = [choice[1] for override in overrides if (choice := _DATASET_CHOICE.match(override))]
        return f"{unknown_key(key, names)}{_cited(key, overrides)}"
    cause = f"\n  {error.__cause__}" if error.__cause__ else ""
    return f"{CONF}/ cannot be composed: {str(error).partition('Config search path')[0].rstrip()}{cause}"


def _cited(key: str, overrides: list[str]) -> str:
    """Return the last override that sets a key, in brackets; nothing if none does."""
    matching = [override for override in overrides if key_of(override) == key]
    return f"  [override {matching[-1]!r}]" if matching else ""


def jobs_of(arguments: list[str]) -> list[list[str]]:
    """Return the overrides of each job that Hydra's own sweeper makes of a sweep's arguments.

    Raises:
        ConfigError: the arguments do not parse, or the sweeper cannot enumerate one of them.

    """
    try:
        with _hydra_of_conf():
            return sweep_jobs(arguments, GlobalHydra.instance().config_loader())
    except HydraException as error:
        raise ConfigError(composition_fault(error, arguments)) from error


def check_jobs(datasets: list[str], jobs: list[list[str]]) -> str | None:
    """Compose and validate the build of each job of a sweep.

    Returns None if all are valid; else the number of jobs that are not, and each mistake once.

    Raises:
        ConfigError: no job is valid; with the same text.

    """
    invalid, mistakes = 0, dict[str, None]()
    for job in jobs:
        try:
            build_config(Params(datasets, job))
        except ConfigError as error:
            invalid += 1
            title, *details = str(error).splitlines()
            mistakes |= dict.fromkeys(line.strip() for line in details or [title])
    if not mistakes:
        return None
    listed, omitted = list(mistakes)[:_LISTED_MISTAKES], len(mistakes) - _LISTED_MISTAKES
    if omitted > 0:
        listed.append(f"and {omitted} more")
    message = f"{invalid} of {len(jobs)} jobs cannot be built:\n  " + "\n  ".join(listed)
    if invalid == len(jobs):
        raise ConfigError(message)
    return message


def target_section(name: str) -> TargetSection:
    """Compose the section of conf/target/<name>.yaml alone.

    Raises:
        ConfigError: there is no such target, or it is not valid.

    """
    known = sorted(path.stem for path in (CONF / "target").glob("*.yaml"))
    if name not in known:
        raise ConfigError(f"no target {name!r}: {CONF}/target/ has {known}")
    load_yaml(CONF / "target" / f"{name}.yaml")  # refuses a file that is not YAML, on which Hydra ends with a traceback
    tree, _ = compose_tree(f"target/{name}", [])
    try:
        return TargetSection.model_validate(tree["target"])
    except ValidationError as error:
        raise ConfigError(f"{CONF}/target/{name}.yaml:\n  " + "\n  ".join(map(mistake, error.errors()))) from error


@no_collector()
def build_config(params: Params) -> BuildConfig:
    """Compose and validate the whole build.

    Raises:
        ConfigError: with every mistake.

    """
    if faults := [fault for path in sorted(CONF.rglob("*.yaml")) for fault in ambiguous_scalars(path)]:
        raise ConfigError("values that Hydra and DVC read differently:\n  " + "\n  ".join(faults))
    check_grammar(params.overrides, "params.yaml")
    if sweeps := [override for override in params.overrides if is_sweep(override)]:
        hint = quotes_hint(sweeps[0], "params.yaml", "a text with a comma wants quotes")
        raise ConfigError(
            f"{sweeps} give several values for one build: `python -m pipeline.sweep -m` runs one build for each; "
            f"a list is written KEY=[A,B]{hint}"
        )
    names = sorted(params.datasets)
    tree, choices = compose_tree("config", [*dataset_choices(names), *params.overrides])
    if leaks := secrets(tree):
        raise ConfigError(
            f"these values look like API keys: {', '.join(leaks)}. "
            "A key is read from the environment; name its variable in provider.api_key_env."
        )
    _check_datasets(tree, names)
    for name in names:
        dataset = tree["datasets"][name]
        if isinstance(dataset, dict):
            dataset["audit"] = dataset.get("audit") or {}
    config = validate({**tree, "names": names, "inputs": {}}, choices, params.overrides)
    return config.model_copy(update={"inputs": _inputs(config)})


def _check_datasets(tree: dict[str, Any], names: list[str]) -> None:
    """Check that overrides neither remove a dataset of params.yaml nor add one.

    Raises:
        ConfigError: they do.

    """
    composed = tree.get("datasets")
    if removed := sorted(set(names) - set(composed if isinstance(composed, dict) else ())):
        raise ConfigError(
            f"{PARAMS}: an override takes away what `datasets` names: {removed}; take it out of `datasets` instead"
        )
    if extra := sorted(set(tree["datasets"]) - set(names)):
        raise ConfigError(f"{PARAMS}: overrides set keys of datasets that `datasets` does not name: {extra}")


def _inputs(config: BuildConfig) -> dict[str, str | None]:
    """Return the digest of every prompt file, by dataset or `evaluate`.

    Raises:
        ConfigError: some cannot be used; the message names each.

    """
    files = {name: (dataset.prompts.path, f"datasets.{name}.prompts.path") for name, dataset in config.datasets.items()}
    files["evaluate"] = (config.evaluate.path, "evaluate.path")
    inputs, faults = dict[str, str | None](), list[str]()
    for name, (path, key) in files.items():
        try:
            inputs[name] = _digest(path, key, hub=name != "evaluate")
        except ConfigError as error:
            faults.append(str(error))
    if faults:
        title = [f"{len(faults)} prompt files cannot be used:"] if len(faults) > 1 else []
        raise ConfigError("\n  ".join([*title, *faults]))
    return inputs


def _digest(path: str, key: str, *, hub: bool) -> str | None:
    """Return the digest of a prompt file; None for a dataset of the hub, which its pinned revision identifies.

    Raises:
        ConfigError: the file is missing, or outside data/, where DVC does not see it change.

    """
    if path.startswith("hf://"):
        if not hub:
            raise ConfigError(f"{key} is {path!r}: it must be a file under data/; save the hub dataset's prompts there")
        return None
    file = Path(path)
    if file.is_absolute() or ".." in file.parts or file.parts[:1] != ("data",):
        raise ConfigError(
            f"{key} is {path!r}: a prompt file must lie under data/ (put it or link it there), "
            "or DVC cannot see it change"
        )
    if file.is_dir():
        raise ConfigError(f"{key} is {path!r}, and that is a folder: name one file")
    if not file.is_file():
        in_dvc = file.with_name(f"{file.name}.dvc").is_file()
        reason = f"only {path}.dvc is here: `dvc pull {path}` brings it" if in_dvc else "there is no such file"
        raise ConfigError(f"{key} is {path!r}, and {reason}")
    return sha256_file(file)


def _as_yaml(config: BuildConfig) -> str:
    text = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 160
    yaml.dump(config.model_dump(mode="json"), text)
    return (
        "# Written by `python -m pipeline compose` for people to read; stages read config.json. "
        f"Edit {CONF}/ and {PARAMS} instead.\n{text.getvalue()}"
    )


def remove_stale(names: list[str]) -> list[Path]:
    """Remove the files kept in git of datasets that params.yaml no longer names, and return their paths.

    `train` depends on the folder of stamps, and must not see a stamp of such a dataset.
    """
    templates = {template for stage in STAGES if stage.per_dataset for template in stage.kept_in_git()}
    removed = []
    for template in sorted(templates):
        pattern = re.compile(re.escape(template).replace(r"\{d\}", "([^/]+)") + r"\Z")
        for path in BUILD.parent.glob(template.format(d="*")):
            match = pattern.match(path.as_posix())
            if match and match[1] not in names and match[1] not in RESERVED:
                path.unlink()
                removed.append(path)
    return removed


@no_collector()
def documents(params: Params) -> tuple[BuildConfig, dict[Path, bytes]]:
    """Return the composed config, and the content of each file that `write_documents` writes; write nothing.

    Raises:
        ConfigError: conf/, params.yaml or the code cannot be built from.

    """
    config = build_config(params)
    code = fingerprints(Path(), [stage.name for stage in STAGES])
    return config, {
        CONFIG: to_json(config, indent=True) + b"\n",
        CONFIG.with_suffix(".yaml"): _as_yaml(config).encode(),
        CODE: to_json(code, indent=True) + b"\n",
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
