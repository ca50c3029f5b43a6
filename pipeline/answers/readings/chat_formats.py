"""Chat formats: how each writes structured tool calls, and which white space its model may put at the seams."""

import re
from dataclasses import dataclass
from typing import Protocol

from pipeline.answers.readings.markers import Markers, Piece
from pipeline.formats.schema.target import TargetRecord

Thinking = str
"""State that the prompt leaves the model in: `open` (inside the reasoning), `closed` (after it), `none` (neither)."""


@dataclass(frozen=True, slots=True)
class NamedCall:
    """A call with the id, name and arguments that the model wrote."""

    id: str
    name: str
    arguments: str


class ChatFormat(Protocol):
    """The properties in which chat formats differ."""

    @property
    def thinking(self) -> Thinking:
        """State after the generation prompt, used where the prompt is not known."""

    @property
    def separators(self) -> tuple[str, ...]:
        """Texts that may be between two calls; the template's own comes first."""

    @property
    def lead(self) -> str:
        """Text between the content and the first call, when there is content."""

    @property
    def seams(self) -> dict[str, str]:
        """Maps a seam that servers strip to the white space that the template puts there."""

    @property
    def name(self) -> re.Pattern[bytes] | None:
        """Matches a call's name (group 1) at the beginning of its `call_args`.

        It is None where the call's id holds the name.
        """

    def call(self, call: NamedCall, markers: Markers) -> list[Piece]:
        """Return one call as pieces, without the text between calls."""


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
    """Return the chat format of a target."""
    formats: dict[str, ChatFormat] = {
        "kimi_k25": _Kimi("open"),
        "kimi_k2": _Kimi("none"),
        "qwen3": _Hermes(),
        "deepseek_v3": _DeepSeek(),
    }
    return formats[record.chat]


class CallIds:
    """Tells the call ids that the model wrote from those that a server made up."""

    _SERVER = re.compile(r"(?:call|chatcmpl|toolu|tooluse|fc|tool)[-_].*|[0-9A-Za-z_-]{9,}|[0-9a-fA-F-]{16,}")

    def __init__(self, template: str | None) -> None:
        self.template = template
        escaped = (
            re.escape(template or "").replace(r"\{name\}", "(?P<name>.+)").replace(r"\{index\}", r"(?P<index>\d+)")
        )
        self._native = re.compile(escaped)

    def native(self, name: str, index: int) -> str:
        """Return the id that the model itself would give the call."""
        assert self.template is not None
        return self.template.format(name=name, index=index)

    def kind(self, call_id: str, name: str) -> str:
        """Return where an id comes from.

        `native` is the model's own form, `server` an id that a server made up or left out, and `foreign` another id
        that the model may have written.
        """
        match = self._native.fullmatch(call_id)
        if match and match["name"] == name:
            return "native"
        return "server" if not call_id or self._SERVER.fullmatch(call_id) else "foreign"


def thinking_after(prompt_ids: list[int], record: TargetRecord) -> Thinking:
    """Return the state in which a prompt leaves the model: the last think marker of the turn that it opens decides."""
    opened, closed = record.role_id("think_open"), record.role_id("think_close")
    for token in reversed(prompt_ids[-8:]):
        if token == opened and opened is not None:
            return "open"
        if token == closed and closed is not None:
            return "closed"
    return "none"
