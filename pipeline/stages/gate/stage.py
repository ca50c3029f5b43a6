"""The gate: a no-go of the audit stops the build here, before anything expensive runs, and after the audit's report is recorded."""

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from pipeline.core.errors import ArtifactError, GateError
from pipeline.core.files.json_file import read_json, write_json
from pipeline.core.sections import Section


class Config(Section):
    """The gate decides nothing: the verdict is the audit's."""


class Gate(Section):
    """The part of the audit's summary that the gate acts on."""

    verdict: Literal["go", "no-go"]
    reasons: list[str]


def run(config: Config, *, summary: Path, verdict: Path) -> None:  # noqa: ARG001 - every stage is given its section
    """Let the build pass, and write that down, or stop it.

    Raises:
        GateError: the audit says no-go; the message has every reason and where the report is.
        ArtifactError: the summary is missing or damaged.

    """
    document = read_json(summary)
    try:
        gate = Gate.model_validate(document["gate"])
        accepted, rows = int(document["accepted"]), int(document["rows"])
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{summary}: no verdict of an audit in it; run `dvc repro` to make it anew") from error
    if gate.verdict == "no-go":
        listed = "\n  ".join(gate.reasons)
        raise GateError(
            f"the audit of {summary.parent.parent.name} says no-go:\n  {listed}\n"
            f"Read {summary.with_name('report.html')}; then change the data, or the thresholds in conf/audit/, and run `dvc repro`."
        )
    write_json(verdict, {"verdict": gate.verdict, "accepted": accepted, "rows": rows})
