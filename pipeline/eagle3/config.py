"""Everything that decides what a drafter computes, and what it was made for: `config.json` of a checkpoint."""

from typing import Any, Literal

from pydantic import Field

from pipeline.section import Section


class DrafterConfig(Section):
    """Shapes, rotary embedding, and the target's layers that it reads."""

    version: Literal[1] = 1
    algorithm: Literal["eagle3"] = "eagle3"
    hidden_size: int
    """Also the target's: the drafter shares the target's embedding."""
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any]
    """As transformers 5 writes them: rope_type, rope_theta and the scaling's own keys."""
    max_position_embeddings: int
    hidden_act: Literal["silu"] = "silu"
    capture_convention: Literal["layer_input"] = "layer_input"
    layer_ids: list[int]
    """Auxiliary layers by that convention; an engine must read the same ones."""
    target_layers: int
    target_sha256: str
    target_name: str
    target_architectures: list[str] = Field(default_factory=list)
    """As the target's own config names them; speculators' format repeats it."""
    trained_on: dict[str, str]
    """Dataset to the digest of its hidden states."""
    training: dict[str, Any]
    """The train section, as it was."""
