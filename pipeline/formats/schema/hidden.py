"""`build/<dataset>/hidden/`: shards, index and manifest; and its stamp in `build/extracted/`.

In a safetensors shard, tensor `aux` is [tokens, 3 * hidden] (low, mid, high layer, concatenated), `last` is [tokens,
hidden] (the last layer's output before the final norm) and `token_ids` is int32 [tokens]. A row is the slice [offset,
offset + length) of all three. With float8, a value is the stored number times the float32 of `aux_scales` [tokens, 3]
or `last_scales` [tokens, 1].
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from pipeline.core.sections import Section

BackendName = Literal["transformers", "vllm", "sglang"]
StoredDtype = Literal["bfloat16", "float16", "float32", "float8_e4m3fn"]


def ascending_layers(layer_ids: list[int], num_layers: int) -> bool:
    """Return whether these are three different layer ids, low to high, of a target with ``num_layers`` layers."""
    return (
        len(layer_ids) == 3
        and sorted(set(layer_ids)) == layer_ids
        and layer_ids[0] >= 0
        and layer_ids[-1] <= num_layers
    )


class Manifest(Section):
    """The content of the shards, and its conventions."""

    version: Literal[1] = 1
    capture_convention: Literal["layer_input"] = "layer_input"
    """Layer id k names the input of layer k, which is the output of layer k-1; 0 is the embedding."""
    layer_ids: list[int] = Field(min_length=3, max_length=3)
    """Auxiliary layers, low to high."""
    layer_names: list[str]
    """Names of the modules whose inputs were taken, as in the model's code."""
    norm_name: str
    """Name of the final norm, whose input is `last`."""
    num_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    dtype: StoredDtype
    """Type of `aux` and `last` as stored."""
    vocab_size: int = Field(ge=1)
    target_sha256: str
    """Digest of the weights' folder, or of the model's name and revision: states of different targets never mix."""
    backend: BackendName = "transformers"
    """What computed the states; the rest of the artifact does not depend on it."""
    engine: str | None = None
    """Name and version of the library or server that computed them, as it reports itself."""

    @model_validator(mode="after")
    def _names_layers_of_the_target(self) -> Self:
        if not ascending_layers(self.layer_ids, self.num_layers):
            raise ValueError(
                f"layer_ids {self.layer_ids} are not three ascending ids from 0 to num_layers, which is "
                f"{self.num_layers}"
            )
        if len(self.layer_names) != len(self.layer_ids):
            raise ValueError(
                f"layer_names {self.layer_names} does not have one name for each of layer_ids {self.layer_ids}"
            )
        return self


class Stamp(Section):
    """A small file that DVC tracks in place of a dataset's hidden states; its digest changes when they do."""

    version: Literal[1] = 1
    dataset: str
    rows: int
    tokens: int
    supervised_tokens: int
    cut: int
    """Rows that were longer than `max_length` and lost their end."""
    left_out: dict[str, int]
    """Rows not extracted, by reason."""
    sha256: str
    """Digest of the folder's files."""
