"""How each chat format writes structured tool calls, and what whitespace its model may put at the seams."""

import re
from dataclasses import dataclass
from typing import Protocol

from pipeline.answers.readings.markers import Markers, Piece
from pipeline.formats.schema.target import TargetRecord

Thinking = str
"""State that the prompt leaves the model in: `open` (inside the reasoning), `closed` (past it), `none` (neither)."""


@dataclass(frozen=True, slots=True)
class NamedCall:
    """A call with everything decided: what the model wrote as id, name and arguments."""

    id: str
    name: str
    arguments: str


class ChatFormat(Protocol):
    """What differs between chat formats."""

    @property
    def thinking(self) -> Thinking:
        """State after the generation prompt, where the prompt itself is unknown."""

    @property
    def separators(self) -> tuple[str, ...]:
        """Texts that may stand between two calls; the template's own first."""

    @property
    def lead(self) -> str:
        """Text between the content and the first call, when there is content."""

    @property
    def seams(self) -> dict[str, str]:
        """What the template puts at a seam that servers strip: seam to whitespace."""

    @property
    def name(self) -> re.Pattern[bytes] | None:
        """Finds a call's name (group 1) at the beginning of its `call_args`; None where the call's id holds it."""

    def call(self, call: NamedCall, markers: Markers) -> list[Piece]:
        """One call as pieces, without what stands between calls."""


class _Kimi:
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`."""

    separators = ("",)
    lead = ""
    seams: dict[str, str] = {}  # noqa: RUF012 -- a constant
    name = None

    def __init__(self, thinking: Thinking) -> None:
        self.thinking = thinking

    def call(self, call: NamedCall, markers: Markers) -> list[Piece]:
        return [
            markers.piece("call_open"),
            Piece("call_id", None, call.id),
            markers.piece("call_args", "call_args_open"),
            Piece("call_args", None, call.arguments),
            markers.piece("call_close"),
        ]


class _Hermes:
    r"""`<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>`, as Qwen3 writes it."""

    separators = ("\n",)
    lead = "\n"
    seams = {"reasoning_start": "\n", "reasoning_end": "\n", "content_start": "\n\n"}  # noqa: RUF012 -- a constant
    thinking = "none"
    name = re.compile(rb'\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)+)', re.DOTALL)

    def call(self, call: NamedCall, markers: Markers) -> list[Piece]:
        body = f'\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n'
        return [markers.piece("call_open"), Piece("call_args", None, body), markers.piece("call_close")]


class _DeepSeek:
    r"""`<｜tool▁call▁begin｜>function<｜tool▁sep｜>name\n```json\n{...}\n```<｜tool▁call▁end｜>`."""

    separators = ("", "\n")
    lead = ""
    seams: dict[str, str] = {}  # noqa: RUF012 -- a constant
    thinking = "none"
    name = re.compile(rb"\s*([^\s{}\"`]+)(?=\s|\Z)")

    def call(self, call: NamedCall, markers: Markers) -> list[Piece]:
        return [
            markers.piece("call_open"),
            Piece("call_id", None, "function"),
            markers.piece("call_args", "call_args_open"),
            Piece("call_args", None, f"{call.name}\n```json\n{call.arguments}\n```"),
            markers.piece("call_close"),
        ]


def format_of(record: TargetRecord) -> ChatFormat:
    """Chat format of a target."""
    formats: dict[str, ChatFormat] = {
        "kimi_k25": _Kimi("open"),
        "kimi_k2": _Kimi("none"),
        "qwen3": _Hermes(),
        "deepseek_v3": _DeepSeek(),
    }
    return formats[record.chat]


class CallIds:
    """Names of calls: which are the model's own, which a server made up."""

    _SERVER = re.compile(r"(?:call|chatcmpl|toolu|tooluse|fc|tool)[-_].*|[0-9A-Za-z_-]{9,}|[0-9a-fA-F-]{16,}")

    def __init__(self, template: str | None) -> None:
        self.template = template
        escaped = (
            re.escape(template or "").replace(r"\{name\}", "(?P<name>.+)").replace(r"\{index\}", r"(?P<index>\d+)")
        )
        self._native = re.compile(escaped)

    def native(self, name: str, index: int) -> str:
        """The id by which the model itself would name the call."""
        assert self.template is not None
        return self.template.format(name=name, index=index)

    def kind(self, call_id: str, name: str) -> str:
        """`native`; `server` for one that a server made or left out; `foreign` for one that the model may have written itself."""
        match = self._native.fullmatch(call_id)
        if match and match["name"] == name:
            return "native"
        return "server" if not call_id or self._SERVER.fullmatch(call_id) else "foreign"


def thinking_after(prompt_ids: list[int], record: TargetRecord) -> Thinking:
    """State in which a prompt leaves the model: decided by the last think marker of the turn that it opens."""
    opened, closed = record.role_id("think_open"), record.role_id("think_close")
    for token in reversed(prompt_ids[-8:]):
        if token == opened and opened is not None:
            return "open"
        if token == closed and closed is not None:
            return "closed"
    return "none"
