"""Strict check of the tools on offer: each is a function, and its parameters are a JSON Schema. Pure."""

from functools import lru_cache
from typing import Any

import orjson

from pipeline.core.errors import InputError
from pipeline.model.conversation_checks import show


def check_schemas(tools: list[dict[str, Any]]) -> None:
    """Check that each tool is a function whose parameters are a JSON Schema of an object.

    Raises:
        InputError: a tool is not: a server would refuse every request of the row, or add a cost that no budget covers.

    """
    for number, tool in enumerate(tools):
        if tool.get("type", "function") != "function":
            raise InputError(
                f"tool {number} is of type {show(tool['type'])}; only functions can be offered: a server's own tools "
                "cost more than the tokens"
            )
        name, parameters = tool["function"]["name"], tool["function"].get("parameters")
        if parameters is None:
            continue
        if not isinstance(parameters, dict):
            raise InputError(
                f"tool {number} ({name}): 'parameters' must be a JSON Schema of an object; found {show(parameters)}"
            )
        if parameters.get("type", "object") != "object":
            raise InputError(
                f"tool {number} ({name}): 'parameters' must be a JSON Schema of type object; "
                f"found type {show(parameters['type'])}"
            )
        try:
            fault = _schema_fault(orjson.dumps(parameters, option=orjson.OPT_SORT_KEYS))
        except (TypeError, RecursionError) as error:
            fault = f"it is nested too deeply, or holds a value that JSON cannot hold: {error}"
        if fault is not None:
            raise InputError(f"tool {number} ({name}): 'parameters' is not a JSON Schema: {fault}")


@lru_cache(maxsize=4096)
def _schema_fault(schema: bytes) -> str | None:
    """Return the first fault of a schema, or None; cached, since the rows of a dataset mostly share their schemas."""
    from jsonschema import Draft202012Validator, SchemaError  # slow to import, and most datasets have no tools

    try:
        Draft202012Validator.check_schema(orjson.loads(schema))
    except SchemaError as error:
        where = ".".join(map(str, error.absolute_path)) or "the schema"
        return f"{where}: {error.message[:200]}"
    return None
