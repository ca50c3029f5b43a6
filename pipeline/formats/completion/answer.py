"""What a body says, typed: the fields as the server sent them, before any reading of what the model emitted.

Named tuples, since each row makes a handful: a frozen dataclass takes four times as long to make.
"""

from typing import Any, Literal, NamedTuple

Finish = Literal["stop", "length", "unknown"]
"""`stop`: the model ended its turn; `length`: it was cut; `unknown`: the server does not say."""


class Call(NamedTuple):
    """One structured tool call."""

    id: str
    """As the server named it; empty when it did not."""
    name: str
    arguments: str
    """Byte for byte when the server sent a string."""
    raw: bool = True
    """False when the server sent an object, so that the model's own text is lost."""


class Answer(NamedTuple):
    """One choice of a completion."""

    position: int
    """Of the choice in the body."""
    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()
    finish: Finish = "unknown"
    finish_reason: str | None = None
    """The server's word."""
    other_reasoning: str | None = None
    """A second text for the reasoning, where two fields of the body contradict each other."""
    rejects: tuple[str, ...] = ()
    """Codes of what makes the texts unusable: an error, a summary in place of the reasoning, ..."""
    given: tuple[tuple[str, Any], ...] = ()
    """Token ids that came with the answer, unchecked: (field, ids)."""
    logprobs: Any = None
    """The choice's `logprobs`, unchecked."""
    notes: tuple[str, ...] = ()
    """Details of `rejects`."""
    has_text: bool = True
    """False for a bare list of ids, which has no text to agree with."""

    @property
    def empty(self) -> bool:
        """Whether the server sent no text at all."""
        return not (self.reasoning or self.content or self.calls)


class Bill(NamedTuple):
    """What the server says that it counted."""

    tokens: int | None = None
    """Completion tokens, reasoning included; None when it says nothing usable."""
    notes: tuple[str, ...] = ()


class Reply(NamedTuple):
    """A whole body."""

    provider: str | None = None
    bill: Bill = Bill()
    answers: tuple[Answer, ...] = ()
    rejects: tuple[str, ...] = ()
    """Codes of what makes the body as a whole unusable; then there are no answers."""
    notes: tuple[str, ...] = ()
    """Details of `rejects`."""
