"""Sections `extract`, and `engine` for the backends that are servers."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from pipeline.core.sections import Address, Section, Variable
from pipeline.formats.schema.hidden import BackendName, StoredDtype


class ExtractSection(Section):
    """How the target's hidden states are computed and stored."""

    backend: BackendName
    """transformers computes in this process; vllm and sglang are servers (section `engine`)."""
    layers: list[int] | None = None
    """Auxiliary layers by input convention; null takes [2, n//2, n-3]."""
    dtype: StoredDtype
    """Type of the stored states; float8_e4m3fn keeps one scale for each token and layer."""
    compute_dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    """Type of the forward pass; a server must return states in it."""
    device: str = "cpu"
    """For transformers: a torch device, or auto, which spreads the model over all GPUs and needs the package
    accelerate."""
    threads: int | None = Field(2, ge=1)
    """CPU threads; fixed, so that the same machine gives the same bits. Null takes torch's default."""
    max_length: int = Field(ge=2)
    """Longest row in tokens."""
    on_long: Literal["cut", "leave_out"] = "cut"
    """Treatment of longer rows; they are counted either way."""
    tokens_per_batch: int = Field(ge=1)
    """Most tokens of one forward pass; a longer row is computed alone."""
    shard_bytes: int = Field(ge=1024)
    """Most bytes of a shard, unless one batch has more; most shards have at least half. A killed run loses at most one
    shard."""

    @model_validator(mode="after")
    def _has_layers_that_the_backend_knows(self) -> Self:
        if self.backend == "sglang" and self.layers and 0 in self.layers:
            raise ValueError(
                "layers: SGLang returns the outputs of layers, so it cannot return layer 0 (the embedding); "
                "leave it out, or use vllm or transformers"
            )
        return self


class EngineSection(Section):
    """The server's address, and limits for its use.

    No key here decides what is stored, so a change extracts nothing anew.
    """

    url: Address
    """Root URL of the server, such as http://127.0.0.1:8000."""
    model: str | None = None
    """The server's name for the target; null takes the name in conf/target."""
    folder: str | None = None
    """For vllm: this machine's path of the folder to which the server writes states (its shared_storage_path)."""
    server_folder: str | None = None
    """The path of that folder on the server's machine; null: the same path."""
    delete_files: bool = True
    """Remove each file of the server once it is read."""
    api_key_env: Variable | None = None
    """Name of the environment variable that holds the server's key, if it needs one."""
    concurrency: int = Field(16, ge=1, le=1024)
    """Most requests under way at a time."""
    timeout: float = Field(600, gt=0)
    """Seconds for one row, the wait for its file included."""
    attempts: int = Field(5, ge=1)
    """Most requests for one row, if the server cannot be reached, is overloaded or fails; a wrong reply is never asked
    for again."""
    max_wait: float = Field(60, ge=0)
    """Longest wait in seconds before a row is asked for again; waits begin at half a second and double."""

    @field_validator("url")
    @classmethod
    def _root(cls, url: str) -> str:
        return url.removesuffix("/v1")


def engine_fault(extract: ExtractSection, engine: EngineSection | None) -> str | None:
    """Return what is wrong with the two sections together, or None."""
    if extract.backend == "transformers":
        if engine is None:
            return None
        return (
            "extract.backend is transformers, which uses no server: leave the section out, "
            "or choose extract=vllm or extract=sglang"
        )
    if engine is None:
        return (
            f"extract.backend is {extract.backend}, which needs this section: "
            f"conf/extract/{extract.backend}.yaml has one"
        )
    if extract.backend == "vllm" and engine.folder is None:
        return "folder: vllm passes states as files: name the folder that it writes to (shared_storage_path)"
    return None
