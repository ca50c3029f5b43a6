"""What a body says, typed: the fields as the server sent them, before any reading of what the model emitted."""

from dataclasses import dataclass, field
from typing import Any, Literal

Finish = Literal["stop", "length", "unknown"]
"""`stop`: the model ended its turn; `length`: it was cut; `unknown`: the server does not say."""


@dataclass(frozen=True, slots=True)
class Call:
    """One structured tool call."""

    id: str
    """As the server named it; empty when it did not."""
    name: str
    arguments: str
    """Byte for byte when the server sent a string."""
    raw: bool = True
    """False when the server sent an object, so that the model's own text is lost."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice of a completion."""

    index: int
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
    has_text: bool = True
    """False for a bare list of ids, which has no text to agree with."""

    @property
    def empty(self) -> bool:
        """Whether the server sent no text at all."""
        return not (self.reasoning or self.content or self.calls)


@dataclass(frozen=True, slots=True)
class Bill:
    """What the server says that it counted."""

    tokens: int | None = None
    """Completion tokens, reasoning included; None when it says nothing usable."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole body."""

    provider: str | None = None
    bill: Bill = Bill()
    answers: tuple[Answer, ...] = ()
    rejects: tuple[str, ...] = ()
    """Codes of what makes the body as a whole unusable; then there are no answers."""
    notes: tuple[str, ...] = field(default=())
