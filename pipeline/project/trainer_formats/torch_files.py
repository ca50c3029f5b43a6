"""Torch files for other trainers.

This program writes them and never reads one: reading a pickle runs code.
"""

import io
from pathlib import Path
from typing import Any

import torch

from pipeline.core.files.atomic import write_bytes


def write_torch_file(path: Path, value: dict[Any, Any]) -> None:
    """Write a dict of tensors or numbers as `torch.save` does; the file appears whole."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    write_bytes(path, buffer.getvalue())
