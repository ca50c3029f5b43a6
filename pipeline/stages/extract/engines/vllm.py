"""vLLM: `extract_hidden_states` writes one safetensors file for each request into a shared folder.

docs/extract-servers.md names the sources of the fields and files that are used here.
"""

import asyncio
import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import orjson
import torch

from pipeline.core.errors import ArtifactError, EngineError
from pipeline.core.files.tensors import TensorFile
from pipeline.stages.extract.config import EngineSection
from pipeline.stages.extract.engines.engine_api import (
    CaptureSpec,
    EngineReply,
    Get,
    ServerIdentity,
    TransientError,
    check_launched_layers,
    whole_number,
    whole_number_or_none,
)
from pipeline.stages.extract.plan import InputRow

_POLL_SECONDS = 0.02
"""Pause between two looks at a file that is being written."""
_CACHING = re.compile(rb'cache_config_info\{[^}]*enable_prefix_caching="(True|False)"')
_LAYERS = re.compile(rb"eagle_aux_hidden_state_layer_ids\W{1,8}\[([\d,\s\\n]*)\]")


class Vllm:
    """Sends token ids to vLLM's completions interface, and reads the files that its replies name."""

    def __init__(self, settings: EngineSection, spec: CaptureSpec) -> None:
        self._settings, self._spec = settings, spec
        self._folder = Path(settings.folder or "").resolve()
        if not self._folder.is_dir():
            raise EngineError(
                f"engine.folder {settings.folder}: there is no such folder here; "
                "it must be the server's shared_storage_path, mounted on this machine"
            )

    async def identify(self, get: Get) -> ServerIdentity:
        """Read version, models and prefix caching (from the metrics), and in vLLM's development mode the layers."""
        url = self._settings.url
        version, models = await get("/version"), await get("/v1/models")
        try:
            engine = f"vllm {orjson.loads(version or b'')['version']}"
            card = orjson.loads(models or b"")["data"][0]
            names = (str(card["id"]), str(card.get("root") or card["id"]))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{url}: /version and /v1/models are not vLLM's ({error!r}): is this a vLLM server?"
            ) from error
        metrics = _CACHING.search(await get("/metrics") or b"")
        caching = None if metrics is None else metrics[1] == b"True"
        if caching:
            raise EngineError(
                f"{url}: prefix caching is on: launch vLLM with --no-enable-prefix-caching (docs/extract-servers.md)"
            )
        layers = _LAYERS.search(await get("/server_info?config_format=json") or b"")
        if layers is not None:
            reported = [int(number) for number in re.findall(rb"\d+", layers[1])]
            check_launched_layers(self._spec, reported, list(self._spec.layer_ids), url)
        return ServerIdentity(
            engine,
            names,
            whole_number_or_none(card.get("max_model_len"), "max_model_len", url),
            caching,
            confirms_layers=layers is not None,
        )

    def request(self, row: InputRow) -> tuple[str, dict[str, Any]]:
        """Ask with token ids as the prompt, and for one greedy token: the engine takes no request without one.

        The penalties are named because vLLM otherwise takes them from the model's generation_config.json, and would
        write another token than the one with the largest logit.
        """
        body = {
            "model": self._spec.model,
            "prompt": row.token_ids.tolist(),
            "max_tokens": 1,
            "temperature": 0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "return_token_ids": True,
        }
        return "/v1/completions", body

    async def read_reply(self, row: InputRow, document: Any) -> EngineReply:
        """Find the file, wait until it is whole, read it and remove it."""
        at = f"{self._settings.url}: row {row.id!r}"
        try:
            choice = document["choices"][0]
            prompt_ids, next_id = choice["prompt_token_ids"], choice["token_ids"][0]
            named = document["kv_transfer_params"]["hidden_states_path"]
            cached = ((document.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{at}: the reply lacks {error}: it needs choices[0].prompt_token_ids and token_ids (return_token_ids) "
                "and kv_transfer_params.hidden_states_path: launch vLLM with the extract_hidden_states method and its "
                "connector (docs/extract-servers.md)"
            ) from error
        next_id = whole_number(next_id, "choices[0].token_ids[0]", at)
        cached = whole_number_or_none(cached, "cached_tokens", at)
        path = self.locate(named, at)
        try:
            states, file_ids = await asyncio.to_thread(self._read, path, len(row.token_ids), at)
        finally:
            if self._settings.delete_files:
                for used in (path, lock_of(path)):
                    with contextlib.suppress(OSError):
                        used.unlink()
        return EngineReply((("the reply", prompt_ids), (path.name, file_ids)), states, next_id, cached)

    def locate(self, named: Any, at: str) -> Path:
        """Return the path on this machine of a file that the server names.

        Raises:
            EngineError: the file is not in the folder: a server must not make us read, or remove, anything else.

        """
        base = PurePosixPath(self._settings.server_folder or str(self._settings.folder))
        server_path = PurePosixPath(str(named))
        inside = server_path.relative_to(base) if server_path.is_relative_to(base) else None
        path = None if inside is None or not inside.parts else (self._folder / inside).resolve()
        if (
            path is None
            or not path.is_relative_to(self._folder)
            or path == self._folder
            or path.suffix != ".safetensors"
        ):
            raise EngineError(
                f"{at}: the server names the file {str(named)[:200]!r}; it must be a .safetensors file in {base} "
                "(engine.server_folder, or folder): is that the server's shared_storage_path?"
            )
        return path

    def _read(self, path: Path, length: int, at: str) -> tuple[torch.Tensor, list[int]]:
        """Return states and ids.

        States of another shape or dtype are not read: their shape is enough to refuse them.
        """
        file = self._open_whole(path, at)
        try:
            shape, dtype = file.shape("hidden_states"), file.dtype("hidden_states")
            ids: list[int] = file.tensor("token_ids").tolist()
            if shape != [length, len(self._spec.layer_ids), self._spec.hidden_size] or dtype != self._spec.dtype:
                return torch.empty(shape, dtype=dtype, device="meta"), ids
            return file.tensor("hidden_states").clone(), ids
        except ArtifactError as error:
            raise EngineError(f"{at}: {error}") from error

    def _open_whole(self, path: Path, at: str) -> TensorFile:
        """Open the file when the server has released its lock and the file is as long as its header says.

        The server writes it in the background, after its reply.

        Raises:
            TransientError: it does not come, or stays cut short: the server's disk may be full.

        """
        deadline = time.monotonic() + self._settings.timeout
        while True:
            try:
                with _unlocked(lock_of(path)) as free:
                    if free and path.is_file():
                        return TensorFile(path)
            except ArtifactError as error:
                fault = str(error)
            else:
                fault = "it is not there" if free else "the server still holds its lock"
            if time.monotonic() > deadline:
                raise TransientError(
                    f"{at}: no whole file {path} within {self._settings.timeout:g} s: {fault}; "
                    f"is {self._folder} the server's folder, and is there room in it?"
                )
            time.sleep(_POLL_SECONDS)


def lock_of(path: Path) -> Path:
    """Return the file whose lock the server holds while it writes ``path``."""
    return path.with_name(f"{path.name}.lock")


@contextlib.contextmanager
def _unlocked(lock: Path) -> Iterator[bool]:
    """Yield whether nobody else holds ``lock``, and hold it meanwhile; a server without locks leaves no such file."""
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
