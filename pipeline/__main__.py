"""`python -m pipeline COMMAND`: run a stage of the build, or a command on files.

dvc.yaml runs `python -m pipeline STAGE DATASET`. A stage gets its slice of build/config.json and the paths of the stage
table. A command parses its own arguments.
"""

import atexit
import gc
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from pipeline.core.parse_errors import reporting_import_errors
from pipeline.core.process import (
    start_time as start_time,  # first, before the modules whose sources it is compared with
)

PARENT = os.getppid()
"""Asked before the slow imports: if the parent dies meanwhile, `getppid` returns the process that adopted this one."""

with reporting_import_errors(__name__):
    from pipeline.core.errors import ConfigError
    from pipeline.core.files.json_file import read_json
    from pipeline.core.process.exit_codes import guarded
    from pipeline.core.process.garbage_collection import no_collector
    from pipeline.core.process.parent_death import follow_parent
    from pipeline.core.sections import pick, section_of
    from pipeline.graph import BY_NAME, Stage

CONFIG = Path("build/config.json")

COMMANDS = {
    "compose": "conf/ to build/config.json and build/code.json",
    "reconstruct": "responses in a file to exact token ids",
    "audit": "token ids in a file to a verdict and a report",
    "calibrate": "measure the reconstruction against true ids",
    "probe": "show the behavior of a target's tokenizer",
    "plan": "show the requests and the cost of a build before it runs",
    "providers": "endpoints, prices, quantization; why the policy admits one or not",
    "store": "the ledger of paid responses: stats, verify, settle, gc, export, import",
    "reuse": "the cache of hidden states for later builds: stats, verify, gc, clear",
    "hidden": "hidden states: stats, verify, show ID",
    "export-data": "training data in SpecForge's or speculators' format",
    "diff": "changes between two versions of the data",
    "report": "the build in one page, or its audits as Markdown for a pull request",
    "status": "the state of the build, in a few lines",
    "verify": "check that the files in git agree with conf/ and the code",
    "doctor": "check the machine, the config, the key, the tokenizer",
}
"""Command to its description; the module `pipeline.commands.<command>` has `main(argv) -> int | None`."""


def paths(templates: dict[str, str], dataset: str | None, names: list[str]) -> dict[str, Any]:
    """Fill in a stage's path templates: {d} becomes the dataset, {each} becomes one path per dataset."""
    filled: dict[str, Any] = {}
    for argument, template in templates.items():
        if "{each}" in template:
            filled[argument] = {name: Path(template.format(each=name)) for name in names}
        else:
            filled[argument] = Path(template.format(d=dataset))
    return filled


def run_stage(stage: Stage, arguments: list[str]) -> None:
    """Run one stage of the build on its slice of the config.

    Raises:
        AerieError: an error that the user can act on.

    """
    config = read_json(CONFIG)
    names = config.get("names", [])
    if len(arguments) != (1 if stage.per_dataset else 0):
        expected = f"DATASET, one of {names}" if stage.per_dataset else "no argument"
        raise ConfigError(f"python -m pipeline {stage.name}: takes {expected}; found {arguments}")
    dataset = arguments[0] if arguments else None
    if dataset is not None and dataset not in names:
        raise ConfigError(f"python -m pipeline {stage.name}: no dataset {dataset!r} in params.yaml; there are {names}")
    with no_collector():
        module = importlib.import_module(f"pipeline.stages.{stage.name}.stage")
    section = section_of(
        module.Config,
        {name: pick(config, path.format(d=dataset)) for name, path in {**stage.keys, **stage.aside}.items()},
    )
    module.run(section, **paths({**stage.reads, **stage.writes}, dataset, names))


def main(argv: list[str]) -> int:
    """Run one command line; return the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    command, arguments = argv[0], argv[1:]
    has_options = any(argument.startswith("-") for argument in arguments)
    # torch's threads wait for each other in busy loops, which is many times slower on cores that are shared
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if command in BY_NAME and command not in COMMANDS and {"-h", "--help"} & set(arguments):
        print(stage_help(BY_NAME[command]))
        return 0
    if command in BY_NAME and not (command in COMMANDS and has_options):
        follow_parent(PARENT)
        return guarded(lambda: run_stage(BY_NAME[command], arguments))
    if command in COMMANDS:
        return guarded(lambda: command_module(command).main(arguments))
    print(f"error: no command {command!r}\n{usage()}", file=sys.stderr)
    return 2


def command_module(command: str) -> Any:
    """Import the module of a command: `pipeline.commands.<command>`."""
    with no_collector():
        return importlib.import_module(f"pipeline.commands.{command.replace('-', '_')}")


def stage_help(stage: Stage) -> str:
    """Describe a stage: its purpose, its config keys, the files that it reads and writes."""
    purpose = (importlib.import_module(f"pipeline.stages.{stage.name}.stage").__doc__ or "").strip()
    usage = f"usage: python -m pipeline {stage.name}{' DATASET' if stage.per_dataset else ''}"
    parts = [("keys of build/config.json", stage.keys), ("reads", stage.reads), ("writes", stage.writes)]
    listed = "\n".join(
        f"{title}: {', '.join(items.values()).replace('{d}', 'DATASET').replace('{each}', '*')}"
        for title, items in parts
        if items
    )
    return f"{usage}\n\n{purpose}\n\n{listed}\n`dvc repro` runs it when one of these, or its code, has changed."


def usage() -> str:
    """List the stages and commands."""
    stages = "\n".join(f"  {stage.name}{' DATASET' if stage.per_dataset else ''}" for stage in BY_NAME.values())
    commands = "\n".join(f"  {name:<12} {description}" for name, description in COMMANDS.items())
    return (
        "usage: python -m pipeline COMMAND ...\n\n"
        f"stages of the build (`dvc repro` runs them in order):\n{stages}\n\n"
        f"commands (add --help):\n{commands}"
    )


if __name__ == "__main__":
    # otherwise Python searches all of torch for cycles before it ends, for more than a second
    atexit.register(gc.freeze)
    sys.exit(main(sys.argv[1:]))
