"""An audit of files that need not come from a build."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.files.atomic import write_text
from pipeline.core.files.compression import opener_of
from pipeline.core.files.contents import read_bytes
from pipeline.core.files.jsonl import open_plain, read_lines
from pipeline.core.files.overwrite_check import refuse_overwriting
from pipeline.core.sections import mistake
from pipeline.project.report.markdown import markdown
from pipeline.project.targets import open_target
from pipeline.stages.audit.config import AuditSection, ExpectSection
from pipeline.stages.audit.inputs.batch import Batch
from pipeline.stages.audit.inputs.context import Context, make_context
from pipeline.stages.audit.inputs.endpoints import NO_ENDPOINTS, read_endpoints
from pipeline.stages.audit.inputs.foreign import open_tokens
from pipeline.stages.audit.inputs.heldout import read_heldout
from pipeline.stages.audit.inputs.latency import read_latencies
from pipeline.stages.audit.inputs.source import Source
from pipeline.stages.audit.outputs import AuditOutputs, write_audit
from pipeline.stages.audit.page.explain import explained
from pipeline.stages.audit.workers import suitable

_CONF = Path("conf/audit")
_BUILD_FILES = ("tokens.parquet", "accepted.parquet")
"""Files of a build: the folder that holds one is named after its dataset."""


@dataclass(frozen=True)
class AuditFiles:
    """The files that an audit reads; None for a file that is not given."""

    tokens: Path
    prompts: Path | None = None
    responses: Path | None = None
    heldout: Path | None = None
    endpoints: Path | None = None
    timings: Path | None = None
    against: tuple[Path, ...] = ()
    """Tokens of other datasets, which no row may repeat."""

    def paths(self) -> list[Path | None]:
        """Return every file, in no particular order."""
        single = [self.tokens, self.prompts, self.responses, self.heldout, self.endpoints, self.timings]
        return [*single, *self.against]


@dataclass(frozen=True)
class AuditRules:
    """The rules that an audit applies."""

    section: AuditSection
    expect: ExpectSection
    allow: tuple[str, ...] = ()
    """Providers that may answer; empty admits all."""
    deny: tuple[str, ...] = ()
    """Providers that may not answer."""


@dataclass(frozen=True)
class FileAudit:
    """An audit with its inputs checked and opened."""

    files: AuditFiles
    rules: AuditRules
    context: Context
    source: Source

    def explain(self, row_id: str) -> str:
        """Return everything that is known of one row, as text for a terminal.

        Raises:
            InputError: no row has this id.

        """
        return explained(self.source, self.context, self.rules.section, row_id)

    def write(self, folder: Path, workers: int | None) -> dict[str, Any]:
        """Write the audit's files and summary.md to a folder; return the summary.

        Without ``workers`` the size of the tokens file decides the number of processes. The result does not depend on
        it.

        Raises:
            InputError: a file is damaged, or holds the ids of another vocabulary.

        """
        tokens = self.files.tokens
        summary = write_audit(
            f"Audit of {tokens.name}",
            self.source,
            self.context,
            self.rules.section,
            AuditOutputs.in_folder(folder),
            compared_batches(self.files.against, self.context),
            workers or suitable(tokens),
            latencies=read_latencies(self.files.timings) if self.files.timings else None,
        )
        write_text(folder / "summary.md", markdown({tokens.name: summary}))
        return summary


def open_file_audit(target: str, files: AuditFiles, rules: AuditRules) -> FileAudit:
    """Open the target and the files of an audit.

    Raises:
        AerieError: an input is missing, damaged or of the wrong form.

    """
    record, tokenizer = open_target(target)
    heldout = read_heldout(files.heldout, tokenizer, rules.section.contamination.n) if files.heldout else None
    endpoints = read_endpoints(files.endpoints) if files.endpoints else NO_ENDPOINTS
    context = make_context(record, tokenizer, rules.expect, rules.allow, rules.deny, heldout, endpoints)
    source = Source(open_tokens(files.tokens), files.prompts, files.responses, str(files.tokens), anyone=True)
    return FileAudit(files, rules, context, source)


def refuse_to_overwrite_inputs(files: AuditFiles, folder: Path) -> None:
    """Check that no file of an audit in this folder would replace a file that it reads.

    Raises:
        InputError: one would; the message names it.

    """
    refuse_overwriting(files.paths(), [*AuditOutputs.in_folder(folder).paths(), folder / "summary.md"])


def load_section(name: str) -> AuditSection:
    """Read thresholds by the name of a file in conf/audit/, or by a path that ends in .yaml or .yml.

    Raises:
        ConfigError: the file is missing, is not YAML, or is not valid; the message names every mistake.

    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else _CONF / f"{name}.yaml"
    if not path.is_file():
        names = sorted(file.stem for file in _CONF.glob("*.yaml"))
        raise ConfigError(f"{path}: no such file; {_CONF}/ has {names}")
    try:
        return AuditSection.model_validate(YAML(typ="safe", pure=True).load(read_bytes(path).decode()))
    except ValidationError as error:
        mistakes = "\n  ".join(map(mistake, error.errors()))
        raise ConfigError(f"{path}: not a valid audit config:\n  {mistakes}") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from error


def compared_batches(paths: tuple[Path, ...], context: Context) -> Iterator[tuple[str, Batch]]:
    """Yield the batches of other datasets, each with the dataset's name.

    The name is that of the file, or that of its folder for a file of a build.
    """
    for path in paths:
        name = path.parent.name if path.name in _BUILD_FILES and path.parent.name else path.name
        for batch in Source(open_tokens(path)).batches(context):
            yield name, batch


def response_lines_fault(responses: Path) -> str | None:
    """Return a warning about response lines that are not JSON, or None where all are.

    `reconstruct` makes rejected rows of such lines, so the audit of the rows goes on without them.

    Raises:
        InputError: the file is missing or packed, or no line is JSON.

    """
    if opener_of(responses) is not open_plain:
        raise InputError(f"{responses}: packed; --responses is read by position, so unpack it first")
    lines, faults = 0, []
    for number, line in read_lines(responses):
        lines += 1
        try:
            orjson.loads(line)
        except orjson.JSONDecodeError as error:
            faults.append(f"line {number}: {error}")
    if not faults:
        return None
    if len(faults) == lines:
        raise InputError(f"{responses}: no line is JSON; {faults[0]}")
    return (
        f"{responses}: {len(faults)} of {lines} lines are not JSON, so their rows are audited without them; {faults[0]}"
    )
