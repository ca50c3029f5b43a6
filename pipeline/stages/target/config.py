"""Config section `target`."""

from pipeline.formats.schema.target import TargetSpec
from pipeline.standin.training.config import TinySection


class TargetSection(TargetSpec):
    """The model that the drafter is trained for."""

    tiny: TinySection | None = None
    """Size and training of a stand-in; null for a real model."""
