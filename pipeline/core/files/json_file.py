"""JSON documents: equal values give equal bytes; a document is validated against its model when it is read."""

from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from pipeline.core.errors import ArtifactError
from pipeline.core.files.atomic import write_bytes
from pipeline.core.files.contents import read_bytes
from pipeline.core.parse_errors import conflict_line, parse_error_message

Model = TypeVar("Model", bound=BaseModel)


def to_json(value: Any, *, indent: bool = False) -> bytes:
    """Encode a value or model as JSON with sorted keys: equal values give equal bytes."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | (orjson.OPT_INDENT_2 if indent else 0))


def write_json(path: Path, value: Any) -> None:
    """Write a small JSON document that people and git read: indented, keys sorted, with a final newline."""
    write_bytes(path, to_json(value, indent=True) + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON document.

    Raises:
        ArtifactError: the file is missing, or is not JSON.

    """
    content = read_bytes(path)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ArtifactError(
            f"{parse_error_message(path, 'JSON', error.lineno, error.msg, conflict_line(content))}; "
            "delete it and run `dvc repro`"
        ) from error


def read_model(path: Path, model: type[Model]) -> Model:
    """Read a JSON document as ``model``; unknown and missing fields are refused.

    Raises:
        ArtifactError: the file is missing, is not JSON, or does not fit the model.

    """
    try:
        return model.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(
            f"{path}: {field or 'document'}: {first['msg']}; it was written by another version: run `dvc repro`"
        ) from error
