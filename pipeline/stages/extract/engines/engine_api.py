"""The interface of a serving engine: wanted states, the server's identity, the reply for a row."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from pipeline.core.errors import EngineError
from pipeline.stages.extract.plan import InputRow

Get = Callable[[str], Awaitable[bytes | None]]
"""Get a document from the server by its path; None if the server does not have it."""


class TransientError(Exception):
    """A request failed in a way that the next attempt may not."""


@dataclass(frozen=True, slots=True)
class CaptureSpec:
    """The states to take from the target."""

    model: str
    """Name under which the server must serve the target."""
    layer_ids: tuple[int, ...]
    """By input convention, ascending. The last id is the number of layers and names the state before the final norm."""
    hidden_size: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server's report of itself."""

    engine: str
    """Name and version."""
    models: tuple[str, ...]
    """Names under which it serves one model."""
    max_length: int | None
    """Most tokens of one request, prompt and answer together; None if not reported."""
    caching: bool | None
    """True if prefixes are cached; None if not reported."""
    confirms_layers: bool
    """True if the server reported the layers that it captures, and they are the wanted ones."""


@dataclass(frozen=True, slots=True)
class EngineReply:
    """One row's states as the engine returned them."""

    token_ids: tuple[tuple[str, Any], ...]
    """Each place where the engine reports the ids that it read, and those ids; a list unless the engine misbehaves."""
    states: torch.Tensor
    """[tokens, layers, hidden], in the order of `CaptureSpec.layer_ids`."""
    next_id: int
    """The token that the engine writes greedily after the row."""
    cached: int | None
    """Tokens of the row that came from the engine's prefix cache; None if not reported."""


class EngineApi(Protocol):
    """Requests and replies of one engine. Methods raise EngineError if the server was launched with wrong options."""

    async def identify(self, get: Get) -> ServerIdentity:
        """Ask the server for its identity, and check the settings that it reports."""

    def request(self, row: InputRow) -> tuple[str, dict[str, Any]]:
        """Return the path and the JSON body that ask for a row's states."""

    async def read_reply(self, row: InputRow, document: Any) -> EngineReply:
        """Read the states out of the server's JSON document."""


def whole_number(value: Any, what: str, where: str) -> int:
    """Return a number of an engine's reply.

    Raises:
        EngineError: it is not a whole number.

    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise EngineError(
            f"{where}: {what} is {str(value)[:80]!r}; a whole number is needed: "
            "is this the engine that extract.backend names?"
        )
    return value


def whole_number_or_none(value: Any, what: str, where: str) -> int | None:
    """Return a number that an engine may leave out.

    Raises:
        EngineError: it is present and not a whole number.

    """
    return None if value is None else whole_number(value, what, where)


def check_launched_layers(spec: CaptureSpec, reported: list[Any], needed: list[int], where: str) -> None:
    """Refuse a server that was launched for other layers.

    Args:
        spec: the wanted states.
        reported: layer ids that the server reports.
        needed: the same layers as ``spec``, as this engine's options count them.
        where: the server, for the message.

    Raises:
        EngineError: with both lists.

    """
    if reported != needed:
        raise EngineError(
            f"{where}: the server was launched for layers {reported}; the inputs of layers {list(spec.layer_ids[:-1])} "
            f"and the last state need {needed}, as this engine counts (docs/extract-servers.md)"
        )
