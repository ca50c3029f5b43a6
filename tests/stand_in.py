"""A stand-in trained for one second: it can be served, but often breaks the form, so tests see strange answers."""

from pathlib import Path
from typing import NamedTuple

from pipeline.project.compose import target_section
from pipeline.stages.target.stage import Config, run


class StandIn(NamedTuple):
    model: Path
    record: Path
    metrics: Path

    @classmethod
    def of(cls, folder: Path) -> "StandIn":
        """Return the paths of the files in a folder."""
        return cls(folder / "model", folder / "fingerprint.json", folder / "metrics.json")


def make_stand_in(folder: Path) -> StandIn:
    """Run the target stage with a small model and few tokens."""
    section = target_section("tiny_kimi")
    assert section.tiny is not None
    tiny = section.tiny.model_copy(update={"width": 32, "mlp": 64, "tokens": 20_000})
    made = StandIn.of(folder)
    run(Config(target=section.model_copy(update={"tiny": tiny})), **made._asdict())
    return made
