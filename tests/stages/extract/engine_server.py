"""A server on loopback that returns a tiny model's states as vLLM and SGLang do: their paths, fields, files and locks.

Its fields change what it returns, in each way in which a real server goes wrong.
"""

import fcntl
import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import orjson
import torch

from pipeline.core.files.tensors import save_tensors
from pipeline.model.weights.target import Target, open_model
from pipeline.stages.extract.forward import pack_attention, states
from tests.polling import TIMEOUT_S

PROBES = 4
"""Beginnings of the first row that are asked for before all rows, one by one."""

Bend = Callable[[dict[str, Any]], object]


def _as_is(_document: dict[str, Any]) -> None:
    pass


@cache
def _open(model: Path, dtype: str) -> Target:
    target = open_model(model, dtype=dtype, device="cpu")
    pack_attention(target)
    return target


@dataclass
class EngineServer:
    """Serves one model. ``layer_ids`` are by input convention; the last is the number of layers."""

    kind: str
    model: Path
    layer_ids: list[int]
    folder: Path
    dtype: str = "float32"
    version: str = "9.9.9"
    says: dict[str, bytes] = field(default_factory=dict)
    """Documents that replace its own, by path; an empty one is a 404."""
    bend: Bend = _as_is
    """Changes a reply before it is sent."""
    bend_states: Callable[[torch.Tensor], torch.Tensor] = lambda states: states
    """Changes [tokens, layers, hidden] before it is returned."""
    replace_states: Callable[[int, list[int], torch.Tensor], torch.Tensor] = lambda number, ids, states: states
    """Returns other states for the request of that number, with these ids and states."""
    choose: Callable[[torch.Tensor], int] = lambda logits: int(logits.argmax())
    """Picks the next token from logits [vocab]."""
    write_file: Callable[[Path, dict[str, torch.Tensor]], None] | None = None
    """Writes the file without a lock, while the reply is under way."""
    bend_file: Callable[[dict[str, torch.Tensor]], object] = _as_is
    status: Callable[[int], int] = lambda nth: 200
    """HTTP status by the number of the request; 0 drops the connection."""
    slow: float = 0.0
    """Seconds between a reply and its whole file."""

    def __post_init__(self) -> None:
        self.target = _open(self.model, self.dtype)
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = self.most_in_flight = 0
        self.together = 1
        """Requests after the probe's that wait for each other, so that all are under way at once."""
        self._lock = threading.Lock()
        self._turns = threading.Condition()

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"engine": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def documents(self) -> dict[str, bytes]:
        models = {"data": [{"id": "served", "root": str(self.model), "max_model_len": 500}]}
        if self.kind == "vllm":
            caching = b'vllm:cache_config_info{block_size="16",enable_prefix_caching="False",engine="0"} 1.0\n'
            own: dict[str, Any] = {"/version": {"version": self.version}, "/v1/models": models, "/metrics": caching}
        else:
            info = {
                "version": self.version, "disable_radix_cache": True, "enable_return_aux_hidden_states": True,
                "return_aux_hidden_state_layer_ids": [number - 1 for number in self.layer_ids],
            }  # fmt: skip
            own = {
                "/server_info": info,
                "/model_info": {"model_path": str(self.model), "served_model_name": "served"},
                "/v1/models": models,
            }
        return {
            **{path: body if isinstance(body, bytes) else json.dumps(body).encode() for path, body in own.items()},
            **self.says,
        }

    def compute(self, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return states [tokens, layers, hidden] of a row and the logits [vocab] after it."""
        row = torch.tensor(ids, dtype=torch.int32)
        with self._lock:
            aux, last = states(self.target, self.layer_ids[:-1], [row], packed=True)
            logits = self.target.head(self.target.norm(last[-1:]))[0]
        return torch.cat([aux, last], 1).unflatten(1, (len(self.layer_ids), -1)), logits

    def begin(self, body: dict[str, Any], headers: dict[str, str]) -> int:
        """Note a request and return its number, which no other request has."""
        with self._turns:
            self.headers.append(headers)
            self.asked.append(body)
            return len(self.asked)

    def enter(self, number: int) -> None:
        """Begin to compute, once as many requests are under way as `together` says."""
        with self._turns:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self._turns.notify_all()
            if number > PROBES:
                self._turns.wait_for(lambda: self.most_in_flight >= self.together, TIMEOUT_S)

    def leave(self) -> None:
        """End what `enter` began."""
        with self._turns:
            self.in_flight -= 1

    def complete(self, number: int, body: dict[str, Any]) -> dict[str, Any]:
        ids = body["prompt"] if self.kind == "vllm" else body["input_ids"]
        computed, logits = self.compute(ids)
        token = self.choose(logits)
        found = self.bend_states(self.replace_states(number, ids, computed))
        if self.kind == "sglang":
            about = {
                "prompt_tokens": len(ids),
                "cached_tokens": 0,
                "hidden_states": [found.flatten(1).float().tolist()],
            }
            return {"text": "", "output_ids": [token], "prompt_token_ids": ids, "meta_info": about}
        path = self.folder / f"cmpl-{uuid.uuid4().hex}.safetensors"
        tensors = {"hidden_states": found, "token_ids": torch.tensor(ids)}
        self.bend_file(tensors)
        if self.write_file is None:
            lock = open(f"{path}.lock", "w")  # noqa: SIM115 - held by the thread that writes
            fcntl.flock(lock, fcntl.LOCK_EX)
            threading.Thread(target=self._write, args=(path, tensors, lock), daemon=True).start()
        else:
            threading.Thread(target=self.write_file, args=(path, tensors), daemon=True).start()
        choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_token_ids": ids, "token_ids": [token]}
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1}
        return {
            "id": path.stem,
            "choices": [choice],
            "usage": usage,
            "kv_transfer_params": {"hidden_states_path": str(path)},
        }

    def _write(self, path: Path, tensors: dict[str, torch.Tensor], lock: Any) -> None:
        if self.slow:
            path.write_bytes(b"half")
            time.sleep(self.slow)
        save_tensors(path, tensors)
        lock.close()


class _Handler(BaseHTTPRequestHandler):
    engine: EngineServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        body = self.engine.documents().get(self.path, b"")
        self._send(200 if body else 404, body)

    def do_POST(self) -> None:
        engine = self.engine
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number = engine.begin(body, {name.lower(): value for name, value in self.headers.items()})
        status = engine.status(number)
        if status == 0:
            self.close_connection = True
            return
        if status != 200:
            self._send(status, b'{"error": "as told"}')
            return
        engine.enter(number)
        document = engine.complete(number, body)
        engine.leave()
        engine.bend(document)
        self._send(200, orjson.dumps(document))
