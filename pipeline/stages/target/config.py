"""`target`."""

from pipeline.formats.schema.target import TargetSpec
from pipeline.standin.training.config import TinySection


class TargetSection(TargetSpec):
    """The model that is drafted for."""

    tiny: TinySection | None = None
    """How to train the stand-in; null for a real model."""
