"""The config of a drafter, `config.json` of a checkpoint: shapes, rotary embedding, target."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from pipeline.core.sections import Section
from pipeline.formats.schema.hidden import ascending_layers


class DrafterConfig(Section):
    """Shapes, rotary embedding, and the layers of the target that the drafter reads."""

    version: Literal[1] = 1
    algorithm: Literal["eagle3"] = "eagle3"
    hidden_size: int = Field(ge=1)
    """The target's width: the drafter uses the target's embedding."""
    intermediate_size: int = Field(ge=1)
    num_heads: int = Field(ge=1)
    num_kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    draft_vocab_size: int = Field(ge=1)
    rms_norm_eps: float = Field(gt=0)
    rope_parameters: dict[str, Any]
    """As transformers 5 writes them: rope_type, rope_theta and the keys of the scaling."""
    max_position_embeddings: int = Field(ge=1)
    hidden_act: Literal["silu"] = "silu"
    capture_convention: Literal["layer_input"] = "layer_input"
    layer_ids: list[int]
    """Auxiliary layers by that convention; an engine must read the same ones."""
    target_layers: int = Field(ge=1)
    target_sha256: str
    target_name: str
    target_architectures: list[str] = Field(default_factory=list)
    """As in the target's own config; speculators' format repeats them."""
    trained_on: dict[str, str]
    """Digest of the hidden states by dataset."""
    training: dict[str, Any]
    """The section `train` of the run."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.head_dim % 2 or self.num_heads % self.num_kv_heads or self.hidden_size % self.num_heads:
            raise ValueError(
                f"{self.num_heads} heads of {self.head_dim}, {self.num_kv_heads} key heads, width {self.hidden_size}: "
                "heads must be of even width, a multiple of key heads, and a divisor of the width"
            )
        if self.draft_vocab_size > self.vocab_size:
            raise ValueError(
                f"draft_vocab_size is {self.draft_vocab_size}, vocab_size {self.vocab_size}: "
                "the draft vocabulary is a part of the target's"
            )
        if not ascending_layers(self.layer_ids, self.target_layers):
            raise ValueError(
                f"layer_ids {self.layer_ids} are not three ascending ids from 0 to target_layers, "
                f"which is {self.target_layers}"
            )
        if not {"rope_type", "rope_theta"} <= self.rope_parameters.keys():
            raise ValueError(
                f"rope_parameters are {self.rope_parameters}; at least rope_type and rope_theta are needed"
            )
        return self
