"""vLLM: `extract_hidden_states` writes one safetensors file a request into a folder that both sides see (docs/extract-servers.md has the sources)."""

import asyncio
import contextlib
import fcntl
import os
import re
import time
from pathlib import Path, PurePosixPath
from typing import Any

import orjson
import torch

from pipeline.core.errors import ArtifactError, EngineError
from pipeline.core.files.tensors import TensorFile
from pipeline.stages.extract.config import EngineSection
from pipeline.stages.extract.engines.dialect import (
    Again,
    Answer,
    Get,
    Served,
    Wanted,
    launched_for,
    whole_number,
    whole_number_or_none,
)
from pipeline.stages.extract.plan import Row

_POLL = 0.02
"""Seconds between two looks at a file that is being written."""
_CACHING = re.compile(rb'cache_config_info\{[^}]*enable_prefix_caching="(True|False)"')
_LAYERS = re.compile(rb"eagle_aux_hidden_state_layer_ids\W{1,8}\[([\d,\s\\n]*)\]")


class Vllm:
    """Speaks vLLM's completions interface with token ids in, and reads the files that it names."""

    def __init__(self, settings: EngineSection, wanted: Wanted) -> None:
        self._settings, self._wanted = settings, wanted
        self._folder = Path(settings.folder or "").resolve()
        if not self._folder.is_dir():
            raise EngineError(
                f"engine.folder {settings.folder}: no such folder here; it must be the server's shared_storage_path, mounted on this machine"
            )

    async def identify(self, get: Get) -> Served:
        """Version, models, prefix caching (from the metrics), and the layers where the server was launched in its development mode."""
        version, models = await get("/version"), await get("/v1/models")
        try:
            engine = f"vllm {orjson.loads(version or b'')['version']}"
            card = orjson.loads(models or b"")["data"][0]
            names = (str(card["id"]), str(card.get("root") or card["id"]))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{self._settings.url}: /version and /v1/models are not vLLM's ({error!r}): is this a vLLM server?"
            ) from error
        metrics = _CACHING.search(await get("/metrics") or b"")
        caching = None if metrics is None else metrics[1] == b"True"
        if caching:
            raise EngineError(
                f"{self._settings.url}: prefix caching is on: launch vLLM with --no-enable-prefix-caching (docs/extract-servers.md)"
            )
        layers = _LAYERS.search(await get("/server_info?config_format=json") or b"")
        said = None if layers is None else [int(number) for number in re.findall(rb"\d+", layers[1])]
        launched_for(self._wanted, said, list(self._wanted.layer_ids), self._settings.url)
        return Served(
            engine, names, whole_number_or_none(card.get("max_model_len"), "max_model_len", self._settings.url), caching
        )

    def request(self, row: Row) -> tuple[str, dict[str, Any]]:
        """Token ids as the prompt, and one greedy token: the engine makes no request without."""
        body = {
            "model": self._wanted.model,
            "prompt": row.token_ids.tolist(),
            "max_tokens": 1,
            "temperature": 0,
            "return_token_ids": True,
        }
        return "/v1/completions", body

    async def answer(self, row: Row, document: Any) -> Answer:
        """Find the file, wait until it is whole, read and remove it."""
        at = f"{self._settings.url}: row {row.id!r}"
        try:
            choice = document["choices"][0]
            prompt_ids, next_id = choice["prompt_token_ids"], choice["token_ids"][0]
            named = document["kv_transfer_params"]["hidden_states_path"]
            cached = ((document.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{at}: the answer lacks {error}: it needs choices[0].prompt_token_ids and token_ids (return_token_ids) and kv_transfer_params.hidden_states_path: "
                "launch vLLM with the extract_hidden_states method and its connector (docs/extract-servers.md)"
            ) from error
        next_id, cached = (
            whole_number(next_id, "choices[0].token_ids[0]", at),
            whole_number_or_none(cached, "cached_tokens", at),
        )
        path = self.locate(named, at)
        try:
            states, ids = await asyncio.to_thread(self._read, path, len(row.token_ids), at)
        finally:
            if self._settings.delete_files:
                for used in (path, lock_of(path)):
                    with contextlib.suppress(OSError):
                        used.unlink()
        return Answer((("the answer", prompt_ids), (path.name, ids)), states, next_id, cached)

    def locate(self, named: Any, at: str) -> Path:
        """Place on this machine of a file as the server names it.

        Raises:
            EngineError: it does not lie in the folder: what a server says must not make us read, or remove, anything else.

        """
        base = PurePosixPath(self._settings.server_folder or str(self._settings.folder))
        said = PurePosixPath(str(named))
        inside = said.relative_to(base) if said.is_relative_to(base) else None
        path = None if inside is None or not inside.parts else (self._folder / inside).resolve()
        if (
            path is None
            or not path.is_relative_to(self._folder)
            or path == self._folder
            or path.suffix != ".safetensors"
        ):
            raise EngineError(
                f"{at}: the server names the file {str(named)[:200]!r}; it must be a .safetensors file in {base} (engine.server_folder, or folder): "
                "is that the server's shared_storage_path?"
            )
        return path

    def _read(self, path: Path, length: int, at: str) -> tuple[torch.Tensor, list[int]]:
        file = self._whole(path, at)
        try:
            shape, width = file.shape("hidden_states"), [length, len(self._wanted.layer_ids), self._wanted.hidden_size]
            if shape != width or file.dtype("hidden_states") != self._wanted.dtype:
                return torch.empty(shape, dtype=file.dtype("hidden_states"), device="meta"), file.tensor(
                    "token_ids"
                ).tolist()
            return file.tensor("hidden_states").clone(), file.tensor("token_ids").tolist()
        except ArtifactError as error:
            raise EngineError(f"{at}: {error}") from error

    def _whole(self, path: Path, at: str) -> TensorFile:
        """Open the file once the server has let go of its lock; it is written in the background, after the answer.

        Raises:
            Again: it does not come, or stays cut short: the server's disk may be full.

        """
        deadline = time.monotonic() + self._settings.timeout
        while True:
            try:
                with _unlocked(lock_of(path)) as free:
                    if free and path.is_file():
                        return TensorFile(path)
            except ArtifactError as error:
                failed = str(error)
            else:
                failed = "it is not there" if free else "the server still holds its lock"
            if time.monotonic() > deadline:
                raise Again(
                    f"{at}: no whole file {path} within {self._settings.timeout:g} s: {failed}; is {self._folder} the server's folder, and has it room?"
                )
            time.sleep(_POLL)


def lock_of(path: Path) -> Path:
    """File whose lock the server holds while it writes ``path``."""
    return path.with_name(f"{path.name}.lock")


@contextlib.contextmanager
def _unlocked(lock: Path) -> Any:
    """Tell whether nobody holds ``lock``; hold it meanwhile. A server without locks leaves no such file."""
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(handle)
