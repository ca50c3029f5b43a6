"""The weight of each token of an answer in training, by the kind of its segment.

Segments are stored beside the hidden states, so another rule trains anew and extracts nothing.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from pipeline.core.sections import Section

if TYPE_CHECKING:
    from pipeline.formats.schema.tokens import Segment

_OF_MARKER = {
    "think_open": "think",
    "think_close": "think",
    "tools_open": "tools",
    "call_open": "tools",
    "call_args_open": "tools",
    "call_close": "tools",
    "tools_close": "tools",
}
"""Field of `LossWeights` by kind of segment, for markers; texts, `end` and `special` have fields of the same names."""


class LossWeights(Section):
    """A weight for each kind of segment; the default is 0."""

    reasoning: float = Field(0, ge=0)
    think: float = Field(0, ge=0)
    """The markers around the reasoning that the model wrote itself."""
    content: float = Field(0, ge=0)
    """Also the weight of tokens that no segment covers, in rows without segments."""
    tools: float = Field(0, ge=0)
    """The markers of a tool section and its calls."""
    call_id: float = Field(0, ge=0)
    """A call's id; Kimi writes the call's name in it."""
    call_name: float = Field(0, ge=0)
    """A call's name, in formats that write it apart from the id (Qwen3, DeepSeek)."""
    call_args: float = Field(0, ge=0)
    """A call's arguments, and the text that the format writes around them."""
    end: float = Field(0, ge=0)
    """The end token."""
    special: float = Field(0, ge=0)
    """Special tokens out of place, or without a role."""

    @model_validator(mode="after")
    def _something_is_supervised(self) -> "LossWeights":
        if not any(weight for _, weight in self):
            raise ValueError("every weight is 0, so nothing would be trained; give at least one kind a weight above 0")
        return self


RuleName = Literal["completion", "completion+tools"]

RULES: dict[RuleName, LossWeights] = {
    "completion": LossWeights(reasoning=1, think=1, content=1, end=1, special=1),
    "completion+tools": LossWeights(
        reasoning=1, think=1, content=1, tools=1, call_id=1, call_name=1, call_args=1, end=1, special=1
    ),
}
"""`completion`: the answer without its tool sections; `completion+tools`: all of it. Prompts and the tool results in
them have weight 0."""


def _form(value: Any) -> str:
    return "name" if isinstance(value, str) else "weights"


LossMask = Annotated[Annotated[RuleName, Tag("name")] | Annotated[LossWeights, Tag("weights")], Discriminator(_form)]


def weights_of(mask: RuleName | LossWeights) -> LossWeights:
    """Return the weights of a rule's name, or the weights themselves."""
    return RULES[mask] if isinstance(mask, str) else mask


def weighted(segments: "Sequence[Segment]", weights: LossWeights) -> Iterator[tuple[int, int, float]]:
    """Yield each segment as (start, end, weight), in tokens of the completion."""
    for segment in segments:
        yield segment.start, segment.end, getattr(weights, _OF_MARKER.get(segment.kind, segment.kind))
