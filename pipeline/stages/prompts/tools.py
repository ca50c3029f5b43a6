"""The tools on offer, as strictly as a server that must call them: functions with a JSON Schema each. Pure."""

from functools import lru_cache
from typing import Any

import orjson

from pipeline.core.errors import InputError
from pipeline.model.conversation import show


def check_schemas(tools: list[dict[str, Any]]) -> None:
    """Check that each tool is a function whose parameters are a JSON Schema of an object.

    Raises:
        InputError: one is not; a server would refuse every request of the row, or buy what no budget foresees.

    """
    for number, tool in enumerate(tools):
        if tool.get("type", "function") != "function":
            raise InputError(
                f"tool {number} is of type {show(tool['type'])}; only functions can be offered: a server's own tools are paid for besides the tokens"
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
                f"tool {number} ({name}): 'parameters' must be a JSON Schema of type object; found type {show(parameters['type'])}"
            )
        try:
            fault = _fault(orjson.dumps(parameters, option=orjson.OPT_SORT_KEYS))
        except (TypeError, RecursionError) as error:
            fault = f"it is nested too deeply, or holds what JSON cannot: {error}"
        if fault is not None:
            raise InputError(f"tool {number} ({name}): 'parameters' is no JSON Schema: {fault}")


@lru_cache(maxsize=4096)
def _fault(schema: bytes) -> str | None:
    """What is wrong with a schema; rows of a dataset mostly share theirs."""
    from jsonschema import Draft202012Validator, SchemaError  # slow to import, and most datasets have no tools

    try:
        Draft202012Validator.check_schema(orjson.loads(schema))
    except SchemaError as error:
        where = ".".join(map(str, error.absolute_path)) or "the schema"
        return f"{where}: {error.message[:200]}"
    return None
