"""The prompt files under data/, written from the corpus: `python -m pipeline.standin.corpus.prompt_files DIR`.

The files are reasoning.jsonl, tools.jsonl, code.jsonl and heldout.jsonl.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pipeline.core.files.jsonl import write_jsonl
from pipeline.core.process.exit_codes import guarded
from pipeline.standin.corpus.dialogue import Dialogue
from pipeline.standin.corpus.streams import KINDS, heldout, shipped


def write_prompt_files(folder: Path) -> None:
    """Write the shipped prompt files, one for each kind, and the held-out one."""
    for kind in KINDS:
        write_jsonl(folder / f"{kind}.jsonl", _rows(kind, shipped(kind)))
    write_jsonl(
        folder / "heldout.jsonl",
        (row for kind in KINDS for row in _rows(f"heldout-{kind}", heldout(kind), dataset=kind)),
    )


def _rows(kind: str, dialogues: Iterable[Dialogue], **more: str) -> Iterator[dict[str, Any]]:
    for number, dialogue in enumerate(dialogues, 1):
        tools = {"tools": dialogue.tools} if dialogue.tools else {}
        yield {"id": f"{kind}-{number:03}", **more, "messages": dialogue.messages, **tools}


def main(argv: list[str]) -> None:
    """Write the prompt files to the folder named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.standin.corpus.prompt_files", description="Write the shipped prompt files."
    )
    parser.add_argument("folder", type=Path, help="where to write them; the repository keeps them in data/")
    write_prompt_files(parser.parse_args(argv).folder)


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
