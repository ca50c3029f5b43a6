"""The embedded server's program: `python -m pipeline.standin.server.serve --model DIR --record FILE [--port N]`.

It prints one JSON line with its URL once it is ready. Large libraries are imported late, since the starting process
imports this module for its name.
"""

import argparse
import errno
import json
import os
import socket
import sys
from pathlib import Path

from pipeline.core.errors import ProviderError
from pipeline.core.process.exit_codes import guarded
from pipeline.core.process.parent_death import follow_parent

HOST = "127.0.0.1"


def _listen(port: int) -> socket.socket:
    """Take a port on loopback; 0 takes any free one.

    Raises:
        ProviderError: the port is taken.

    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        why = "another process uses it" if error.errno == errno.EADDRINUSE else error.strerror
        raise ProviderError(
            f"the embedded server cannot listen on {HOST}:{port}: {why}; choose another --port, or 0 for any free one"
        ) from error
    return listener


def serve(model: Path, record: Path, port: int) -> None:
    """Serve until the process is told to stop.

    Raises:
        AerieError: the port is taken, or the model or the record cannot be used.

    """
    import torch
    import uvicorn

    from pipeline.core.files.json_file import read_model
    from pipeline.formats.schema.target import TargetRecord
    from pipeline.model.rendering import PromptRenderer
    from pipeline.model.special_tokens import open_tokenizer
    from pipeline.standin.model.live_vocabulary import compact
    from pipeline.standin.model.llama import load_checkpoint
    from pipeline.standin.server.api import ServedModel, make_app
    from pipeline.standin.server.batch_engine import BatchEngine

    with _listen(port) as listener:
        target = read_model(record, TargetRecord)
        tokenizer = open_tokenizer(target)
        small, live = compact(load_checkpoint(model))
        engine = BatchEngine(small.to(torch.float64), live)
        app = make_app(ServedModel(target, tokenizer, PromptRenderer(target, tokenizer), engine))
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        print(json.dumps({"url": f"http://{HOST}:{listener.getsockname()[1]}/api/v1"}), flush=True)
        try:
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            engine.close()


def main(argv: list[str]) -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.standin.server.serve",
        description="Serve the stand-in target on loopback, in OpenRouter's form.",
    )
    parser.add_argument(
        "--model", type=Path, required=True, help="checkpoint folder of the stand-in (build/target/model)"
    )
    parser.add_argument("--record", type=Path, required=True, help="checked target (build/target/fingerprint.json)")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0, the default, takes a free one")
    parser.add_argument("--parent", type=int, help="end when this process, which started the server, ends")
    arguments = parser.parse_args(argv)
    if arguments.parent is not None:
        follow_parent()
        if os.getppid() != arguments.parent:
            return
    serve(arguments.model, arguments.record, arguments.port)


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
