"""What a serving engine is asked and what it answers, and whether an answer may be used: the part that all engines share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from pipeline.core.errors import EngineError
from pipeline.core.files.tensors import is_finite
from pipeline.stages.extract.plan import Row

Get = Callable[[str], Awaitable[bytes | None]]
"""Ask the server for a document; None where it has none of that name."""


class Again(Exception):  # noqa: N818
    """A request failed, and the next may not."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be taken from the target."""

    model: str
    """What the server must call it."""
    layer_ids: tuple[int, ...]
    """By input convention, ascending; the last is the number of layers, which names the state before the final norm."""
    hidden_size: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Served:
    """What a server says of itself."""

    engine: str
    """Name and version."""
    models: tuple[str, ...]
    """Names under which it serves one model."""
    max_length: int | None
    """Tokens of one request at most, prompt and answer together."""
    caching: bool | None
    """Whether prefixes are cached; None: it does not say."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One row's states as they came."""

    token_ids: tuple[tuple[str, Any], ...]
    """Each place where the engine says which ids it read, and the ids, a list as far as the engine keeps to its interface."""
    states: torch.Tensor
    """[tokens, states, hidden], in the order of `Wanted.layer_ids`."""
    next_id: int
    """Token that the engine writes after the row, greedily."""
    cached: int | None
    """Tokens of the row that it did not compute itself; None: it does not say."""


class Dialect(Protocol):
    """How one engine is spoken to. Methods raise EngineError where the server is launched otherwise than needed."""

    async def identify(self, get: Get) -> Served:
        """Ask what is served, and check what the engine reports of its own settings."""

    def request(self, row: Row) -> tuple[str, dict[str, Any]]:
        """Path and JSON body that ask for a row's states."""

    async def answer(self, row: Row, document: Any) -> Answer:
        """Read states out of what came back."""


def whole_number(value: Any, what: str, where: str) -> int:
    """Give a number of an engine's answer.

    Raises:
        EngineError: it is none, or no whole one.

    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise EngineError(
            f"{where}: {what} is {str(value)[:80]!r}; a whole number is needed: is this the engine that extract.backend names?"
        )
    return value


def whole_number_or_none(value: Any, what: str, where: str) -> int | None:
    """Give a number that an engine may leave out.

    Raises:
        EngineError: it is there, and no whole number.

    """
    return None if value is None else whole_number(value, what, where)


def check_answer(row: Row, answer: Answer, wanted: Wanted, *, caching: bool | None, where: str) -> None:
    """Refuse an answer that is not this row's states, whole and finite.

    Raises:
        EngineError: with the row's id and both sides.

    """
    at = f"{where}: row {row.id!r}"
    sent = row.token_ids.tolist()
    for place, ids in answer.token_ids:
        if not isinstance(ids, list):
            raise EngineError(
                f"{at}: {place} says {str(ids)[:80]!r} where the {len(sent)} token ids are to be that the engine read (docs/extract-servers.md)"
            )
        if ids != sent:
            raise EngineError(
                f"{at}: {place} {_difference(sent, ids)}: the server read other tokens than it was sent; its states are of another row"
            )
    if answer.cached or (answer.cached is None and caching is None):
        said = (
            f"{answer.cached} of {len(sent)} tokens came from the prefix cache"
            if answer.cached
            else "the server does not say whether prefixes are cached"
        )
        raise EngineError(
            f"{at}: {said}: cached tokens bring no states, or those of another run; launch the server as docs/extract-servers.md says"
        )
    shape = [len(sent), len(wanted.layer_ids), wanted.hidden_size]
    if list(answer.states.shape) != shape:
        raise EngineError(
            f"{at}: states have shape {list(answer.states.shape)}; {shape} is needed (tokens, layers {list(wanted.layer_ids)}, the target's width): "
            "fewer tokens mean prefix caching or chunked prefill, other layers another launch command (docs/extract-servers.md)"
        )
    if answer.states.dtype != wanted.dtype:
        raise EngineError(
            f"{at}: states are {answer.states.dtype}, extract.compute_dtype is {wanted.dtype}: launch the server with that dtype, or change the config"
        )
    if not is_finite(answer.states):
        token, state = (int(value) for value in (~torch.isfinite(answer.states).all(-1)).nonzero()[0])
        raise EngineError(
            f"{at}: the state of layer {wanted.layer_ids[state]} at token {token} is not finite: the server computes too narrowly, or wrongly"
        )
    if not answer.states.any(-1).any(0).all():
        state = int((~answer.states.any(-1).any(0)).nonzero()[0])
        raise EngineError(
            f"{at}: the states of layer {wanted.layer_ids[state]} are all zero: this engine does not capture them for this target"
        )


def _difference(sent: list[int], found: list[int]) -> str:
    if len(sent) != len(found):
        return f"names {len(found)} token ids, {len(sent)} were sent"
    place = next(number for number, (a, b) in enumerate(zip(sent, found, strict=True)) if a != b)
    return f"has id {found[place]} at position {place}, {sent[place]} was sent"


def launched_for(wanted: Wanted, said: list[int] | None, needed: list[int], where: str) -> None:
    """Refuse a server that was launched for other layers. ``needed``: the ids as that engine's options count them.

    Raises:
        EngineError: with both lists.

    """
    if said is not None and said != needed:
        raise EngineError(
            f"{where}: the server was launched for layers {said}; inputs of layers {list(wanted.layer_ids[:-1])} and the last state need {needed}, "
            "as this engine counts (docs/extract-servers.md)"
        )
