"""Config section `target.tiny`: size and training of the stand-in."""

from typing import Self

from pydantic import Field, model_validator

from pipeline.core.sections import Section


class TinySection(Section):
    """A stand-in target that the build trains itself, so that a newcomer needs no download."""

    layers: int = Field(ge=7)
    """At least 7; with fewer, two of the default auxiliary layers are the same."""
    width: int = Field(ge=16)
    mlp: int = Field(ge=16)
    heads: int = Field(ge=1)
    tokens: int = Field(ge=1)
    """Number of training tokens."""
    tokens_per_batch: int = Field(ge=2)
    """Tokens of one step, in two rows."""
    lr: float = Field(gt=0)
    init_std: float = Field(gt=0)
    seed: int = 0

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} must be a multiple of twice the heads, {2 * self.heads}")
        return self
