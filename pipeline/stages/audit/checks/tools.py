"""Checks of tool calls: their markup, names, ids, JSON, and the schema that the request offered."""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import orjson
from jsonschema import Draft202012Validator, SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

from pipeline.stages.audit.checks.check import Complaint
from pipeline.stages.audit.config import CheckSection
from pipeline.stages.audit.features.call_markup import MarkedCall
from pipeline.stages.audit.inputs.batch import Batch


def _calls(batch: Batch) -> Iterator[tuple[int, MarkedCall]]:
    return ((row, call) for row, markup in enumerate(batch.markup) for call in markup.calls)


def offered(prompt: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the schema of each function that the request offered, or None where it offered none or is not known."""
    tools = prompt.get("tools") if isinstance(prompt, dict) else None
    if not isinstance(tools, list) or not tools:
        return None
    functions = [tool.get("function", tool) for tool in tools if isinstance(tool, dict)]
    return {
        function["name"]: function.get("parameters") or {}
        for function in functions
        if isinstance(function, dict) and isinstance(function.get("name"), str)
    }


def parse(text: str) -> Any:
    """Parse a call's arguments; return NaN where they are not JSON. Empty text is an empty object, as for servers."""
    try:
        return orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError:
        return math.nan


def tool_markup(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    for row, markup in enumerate(batch.markup):
        if markup.fault is not None:
            token = int(batch.completion[row][markup.fault])
            yield Complaint(
                row,
                markup.fault,
                f"{batch.context.tokenizer.show(token)} out of order, or the token that should follow it is missing",
            )


def tool_json(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    for row, call in _calls(batch):
        if not isinstance(parse(call.arguments), dict):
            yield Complaint(
                row,
                call.arguments_position,
                f"arguments of {call.header[:60]!r} are not a JSON object: {call.arguments[:80]!r}",
            )


def tool_name(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    for row, call in _calls(batch):
        known = offered(batch.prompts[row])
        if known is not None and call.name is not None and call.name not in known:
            yield Complaint(row, call.position, f"calls {call.name[:60]!r}; offered were {sorted(known)[:10]}")


def tool_schema(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    for row, call in _calls(batch):
        schema = (offered(batch.prompts[row]) or {}).get(call.name or "")
        value = parse(call.arguments)
        if schema is not None and isinstance(value, dict) and (fault := _schema_fault(schema, value)):
            yield Complaint(row, call.arguments_position, f"arguments of {call.name!r}: {fault}")


def _schema_fault(schema: Any, value: Any) -> str | None:
    try:
        written = orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return "the request's schema is nested too deep to be checked"
    return schema_fault(written, value)


@lru_cache(maxsize=4096)
def _validator(schema: bytes) -> Draft202012Validator | str:
    """Return the validator of a schema, or the schema's fault. References resolve inside it, never on the network."""
    document = orjson.loads(schema)
    try:
        Draft202012Validator.check_schema(document)
    except SchemaError as error:
        return f"the request's schema is not valid: {error.message[:120]}"
    return Draft202012Validator(document, registry=Registry())


def schema_fault(schema: bytes, value: Any) -> str | None:
    """Return the first fault of a value under a schema, or None."""
    validator = _validator(schema)
    if isinstance(validator, str):
        return validator
    try:
        faults = sorted(validator.iter_errors(value), key=lambda fault: (fault.json_path, fault.message))
    except Unresolvable as error:
        return f"the request's schema refers to something that is not in it: {error}"
    except RecursionError:
        return "the arguments are nested too deep to be checked"
    return f"{faults[0].json_path}: {faults[0].message[:160]}" if faults else None


def tool_ids(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    form = batch.context.record.tool_id_format
    if form is None:
        return
    call_open = batch.context.role("call_open")
    for row, markup in enumerate(batch.markup):
        before = int((batch.prompt[row] == call_open).sum()) if markup.calls else 0
        for number, call in enumerate(markup.calls, before):
            if call.name is None:
                yield Complaint(row, call.position + 1, f"id {call.header[:60]!r} does not have the form {form!r}")
            elif "{index}" in form and call.index != number:
                yield Complaint(
                    row,
                    call.position + 1,
                    f"id {call.header[:60]!r} has number {call.index}; {number} is next in the conversation",
                )
