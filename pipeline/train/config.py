"""`train`."""

from typing import Literal

from pydantic import Field

from pipeline.section import Section


class TrainSection(Section):
    """The drafter and how it learns."""

    algorithm: Literal["eagle3"]
    draft_vocab_size: int = Field(ge=1)
    """Most frequent supervised ids that the drafter can say."""
    ttt_steps: int = Field(ge=1)
    """Steps of training-time test."""
    step_decay: float = Field(gt=0, le=1)
    """Weight of step j's loss is step_decay ** j."""
    hidden_size: int | None = None
    """Null takes the target's."""
    intermediate_size: int | None = None
    num_heads: int | None = None
    epochs: int = Field(ge=1)
    tokens_per_batch: int = Field(ge=2)
    lr: float = Field(gt=0)
    warmup: float = Field(ge=0, le=1)
    """Share of the steps."""
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = Field(gt=0)
    """Largest gradient norm."""
    heldout: float = Field(0.1, ge=0, lt=1)
    """Share of rows kept from training to choose the checkpoint."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "cpu"
    seed: int = 0
