"""`extract`, and `engine` for the backends that are servers."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from pipeline.core.sections import Address, Section, Variable
from pipeline.formats.schema.hidden import BackendName, StoredDtype


class ExtractSection(Section):
    """How the target's hidden states are taken and stored."""

    backend: BackendName
    """transformers computes in this process; vllm and sglang ask a server (section `engine`)."""
    layers: list[int] | None = None
    """Auxiliary layers by input convention; null takes [2, n//2, n-3]."""
    dtype: StoredDtype
    """Of the stored states; float8_e4m3fn keeps one scale a token and layer."""
    compute_dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    """Of the forward pass; a server must answer in it."""
    device: str = "cpu"
    """For transformers: a torch device, or auto: spread the model over all GPUs (transformers needs the package accelerate for it)."""
    threads: int | None = Field(2, ge=1)
    """CPU threads; fixed, so that the same machine gives the same bits. Null takes torch's default."""
    max_length: int = Field(ge=2)
    """Longest row in tokens."""
    on_long: Literal["cut", "leave_out"] = "cut"
    """What happens to a longer row; either way it is counted."""
    tokens_per_batch: int = Field(ge=1)
    shard_bytes: int = Field(ge=1024)
    """A shard has at most so many bytes, unless one batch has more, and mostly at least half; also what a killed run may lose."""

    @model_validator(mode="after")
    def _has_layers_that_the_backend_knows(self) -> Self:
        if self.backend == "sglang" and self.layers and 0 in self.layers:
            raise ValueError(
                "layers: SGLang gives the outputs of layers, so 0 (the embedding) cannot be asked of it; leave it out, or use vllm or transformers"
            )
        return self


class EngineSection(Section):
    """Where the server is and how hard to press it. Nothing here decides what is stored, so a change extracts nothing anew."""

    url: Address
    """Root of the server, such as http://127.0.0.1:8000."""
    model: str | None = None
    """What the server calls the target; null: as conf/target does."""
    folder: str | None = None
    """For vllm: the folder that the server writes states to (its shared_storage_path), as this machine sees it."""
    server_folder: str | None = None
    """The same folder as the server's machine names it; null: the same name."""
    delete_files: bool = True
    """Remove a file of the server's once its states are stored."""
    api_key_env: Variable | None = None
    """Name of the environment variable that holds the server's key, where it wants one."""
    concurrency: int = Field(16, ge=1, le=1024)
    """Rows asked for at a time at most."""
    timeout: float = Field(600, gt=0)
    """Seconds for one row, the wait for its file included."""
    attempts: int = Field(5, ge=1)
    """Requests for one row, when the server cannot be reached, is overloaded or fails; an answer that is wrong is never asked for again."""
    max_wait: float = Field(60, ge=0)
    """Longest wait in seconds before a row is asked for again; waits double from half a second."""

    @field_validator("url")
    @classmethod
    def _root(cls, url: str) -> str:
        return url.removesuffix("/v1")


def engine_fault(extract: ExtractSection, engine: EngineSection | None) -> str | None:
    """Say what is wrong with the two sections together, or nothing."""
    if extract.backend == "transformers":
        return (
            None
            if engine is None
            else "extract.backend is transformers, which asks no server: leave the section out, or choose extract=vllm or extract=sglang"
        )
    if engine is None:
        return f"extract.backend is {extract.backend}, which needs this section: conf/extract/{extract.backend}.yaml has one"
    if extract.backend == "vllm" and engine.folder is None:
        return "folder: vllm hands states over as files: name the folder that it writes to (shared_storage_path)"
    return None
