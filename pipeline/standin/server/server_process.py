"""The embedded server as a child process of a stage."""

import hashlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipeline.core.errors import ProviderError
from pipeline.core.files.digests import sha256_file, sha256_folder
from pipeline.core.files.scratch import scratch_folder
from pipeline.standin.model import decoder, live_vocabulary, llama
from pipeline.standin.server import serve

_ROOT = Path(__file__).resolve().parents[3]
_START_SECONDS = 120
_STOP_SECONDS = 5
_TAIL_BYTES = 2000


@contextmanager
def running(model: Path, record: Path) -> Iterator[str]:
    """Run the server on a free port; yield its base URL, and stop it when the block ends.

    The server also ends when the thread that entered the block ends, for any reason: enter it on the main thread.

    Raises:
        ProviderError: the server did not start; the message has the end of its output.
        DiskError: no folder for temporary files has room.

    """
    command = [
        sys.executable,
        "-m",
        serve.__name__,
        "--model",
        str(model.resolve()),
        "--record",
        str(record.resolve()),
        "--parent",
        str(os.getpid()),
    ]
    with scratch_folder() as folder, tempfile.TemporaryFile(dir=folder) as log:
        child = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
        try:
            yield _address(child, log)
        finally:
            _stop(child)


def _address(child: "subprocess.Popen[bytes]", log: IO[bytes]) -> str:
    """Wait for the line with the server's URL, and return the URL."""
    assert child.stdout is not None
    ready, _, _ = select.select([child.stdout], [], [], _START_SECONDS)
    line = child.stdout.readline() if ready else b""
    if not line:
        code = child.wait() if ready else None
        log.seek(0)
        tail = log.read()[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
        why = f"ended with code {code}" if ready else f"printed nothing for {_START_SECONDS} s"
        raise ProviderError(f"the embedded server did not start: it {why}:\n{tail or '(no output)'}")
    return str(json.loads(line)["url"])


def _stop(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


def identity(model: Path) -> str:
    """Return the digest of everything that decides an answer beside the request: the weights and the server's source.

    It belongs in a ledger's key, so that the answer of other weights or of another server is never reused.
    """
    digest = hashlib.sha256(sha256_folder(model).encode())
    sources = [
        *Path(__file__).parent.glob("*.py"),
        *(Path(module.__file__ or "") for module in (live_vocabulary, llama, decoder)),
    ]
    for path in sorted(sources, key=lambda path: path.name):
        digest.update(f"{path.name}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()
