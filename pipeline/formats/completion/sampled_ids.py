"""Token ids that come with a body, unchecked, in every place where servers put them."""

from collections.abc import Iterator
from typing import Any

from pipeline.formats.completion.values import mapping

_FIELDS = ("token_ids", "response_token_ids", "completion_token_ids", "output_ids")
_FIELD_SET = frozenset(_FIELDS)


def completion_ids(choice: dict[str, Any], position: int, body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (field, ids) for the choice at a position of a body."""
    for holder in (choice, mapping(choice.get("message"))):
        for key in () if _FIELD_SET.isdisjoint(holder) else _FIELDS:
            if holder.get(key):
                yield key, holder[key]
    raw = choice.get("raw_output")
    if isinstance(raw, dict) and raw.get("completion_token_ids"):
        yield "raw_output.completion_token_ids", raw["completion_token_ids"]
    extension = body.get("sglext")
    if isinstance(extension, dict) and isinstance(lists := extension.get("output_ids"), list) and lists:
        if isinstance(lists[0], list):
            if position < len(lists):
                yield "sglext.output_ids", lists[position]
        elif position == 0:
            yield "sglext.output_ids", lists
    for key in ("output_ids", "token_ids"):
        if position == 0 and body.get(key):
            yield key, body[key]


def prompt_ids(body: Any) -> Iterator[Any]:
    """Yield what an engine reports as the prompt's ids."""
    if not isinstance(body, dict):
        return
    choices = body.get("choices")
    first = mapping(choices[0]) if isinstance(choices, list) and choices else {}
    places = (
        body.get("prompt_token_ids"),
        first.get("prompt_token_ids"),
        mapping(body.get("sglext")).get("input_ids"),
        mapping(first.get("raw_output")).get("prompt_token_ids"),
    )
    yield from (value for value in places if value is not None)
