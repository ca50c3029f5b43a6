"""The gate: stop the build at a no-go of the audit, before the expensive stages.

The audit itself cannot stop it: DVC records no failed stage, so the report would be lost.
"""

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from pipeline.core.errors import ArtifactError, GateError
from pipeline.core.files.json_file import read_json, write_json
from pipeline.core.sections import Section


class Config(Section):
    """No settings: the audit has decided."""


class RecordedVerdict(Section):
    """The verdict in the audit's summary."""

    verdict: Literal["go", "no-go"]
    reasons: list[str]


def run(config: Config, *, summary: Path, verdict: Path) -> None:  # noqa: ARG001 - every stage takes its section
    """Write the verdict down at a go; stop the build at a no-go.

    Raises:
        GateError: the audit says no-go; the message has every reason and the path of the report.
        ArtifactError: the summary is missing or damaged.

    """
    document = read_json(summary)
    try:
        gate = RecordedVerdict.model_validate(document["gate"])
        accepted, rows = int(document["accepted"]), int(document["rows"])
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{summary}: holds no verdict of an audit; run `dvc repro` to make it again") from error
    if gate.verdict == "no-go":
        listed = "\n  ".join(gate.reasons)
        raise GateError(
            f"the audit of {summary.parent.parent.name} says no-go:\n  {listed}\n"
            f"Read {summary.with_name('report.html')}; then change the data, or the thresholds in conf/audit/, "
            "and run `dvc repro`."
        )
    write_json(verdict, {"verdict": gate.verdict, "accepted": accepted, "rows": rows})
