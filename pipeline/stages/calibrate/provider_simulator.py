"""Bodies as each known kind of provider would have sent them, made from the ids that an engine emitted."""

import json
import re
from collections.abc import Callable
from typing import Any

from pipeline.answers.readings.chat_formats import Thinking, format_of
from pipeline.answers.readings.markers import Markers
from pipeline.answers.rungs.returned_ids import spans_of
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer

Body = dict[str, Any]

_FENCED = re.compile(r"(?P<name>[^\n]+)\n```json\n(?P<arguments>.*)\n```", re.DOTALL)
"""Matches the text of a DeepSeek call after its type."""


class ProviderSimulator:
    """Makes response bodies from true ids."""

    def __init__(self, record: TargetRecord, tokenizer: Tokenizer) -> None:
        self._record = record
        self._tokenizer = tokenizer
        self._markers = Markers(record)
        self.thinking = format_of(record).thinking
        self.habits: dict[str, Callable[[list[int], Thinking], Body]] = {
            "ids": self._ids,
            "logprobs, true bytes": self._logprobs,
            "logprobs, decoded text": self._logprobs_text,
            "text": self._clean,
            "text, reasoning right-trimmed": self._right_trimmed,
            "text, both ends trimmed": self._trimmed,
            "text, trimmed as a whole": self._trimmed_whole,
            "text, end token not billed": self._end_free,
            "text, reasoning billed beside": self._beside,
            "text, tool tokens in content": self._raw_tools,
            "text, close tag in content": self._tag_in_content,
            "text, call ids made up": self._made_up_ids,
            "text, arguments written anew": self._rewritten,
            "text, no usage": self._no_usage,
        }
        """Maps the name of a habit to the function that makes a body from ids and the state after the prompt."""

    def _clean(self, ids: list[int], thinking: Thinking) -> Body:
        """Return a body with all text as decoded, structured tool calls, and everything billed."""
        parts = self._parts(ids, thinking)
        message = {"role": "assistant", "content": parts["content"] or None, "reasoning": parts["reasoning"] or None}
        if parts["calls"]:
            message["tool_calls"] = parts["calls"]
        finish = "length" if ids[-1] != self._record.role_id("end") else "tool_calls" if parts["calls"] else "stop"
        choice = {
            "index": 0,
            "finish_reason": finish,
            "native_finish_reason": finish,
            "logprobs": None,
            "message": message,
        }
        return {
            "choices": [choice],
            "usage": {"prompt_tokens": 0, "completion_tokens": len(ids), "total_tokens": len(ids)},
        }

    def _parts(self, ids: list[int], thinking: Thinking) -> dict[str, Any]:
        """Return reasoning, content and structured calls."""
        segmented = spans_of(ids, self._record, self._markers, thinking)
        parts: dict[str, Any] = {"reasoning": "", "content": "", "calls": []}
        for kind, start, end in segmented.spans:
            text = self._text(ids[start:end])
            if kind in ("reasoning", "content"):
                parts[kind] += text
            elif kind == "call_open":
                parts["calls"].append(
                    {
                        "id": "",
                        "type": "function",
                        "index": len(parts["calls"]),
                        "function": {"name": "", "arguments": ""},
                    }
                )
            elif kind == "call_id" and parts["calls"]:
                parts["calls"][-1]["id"] = text
                parts["calls"][-1]["function"]["name"] = text.removeprefix("functions.").rsplit(":", 1)[0]
            elif kind == "call_args" and parts["calls"]:
                self._arguments(parts["calls"][-1], text)
        return parts

    def _arguments(self, call: dict[str, Any], text: str) -> None:
        """Fill in the arguments of a call, and its name in a format that writes both together."""
        call["function"]["arguments"] = text
        if fenced := _FENCED.fullmatch(text) if call["id"] == "function" else None:
            call["function"] = {"name": fenced["name"], "arguments": fenced["arguments"]}
        elif call["id"] == "":
            try:
                body = json.loads(text)
            except ValueError:
                return
            if isinstance(body, dict) and isinstance(body.get("name"), str):
                start = text.find(":", text.find('"arguments"')) + 1
                call["function"] = {"name": body["name"], "arguments": text[start:].strip().removesuffix("}").strip()}

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode_bytes(ids).decode("utf-8", "replace")

    def _ids(self, ids: list[int], thinking: Thinking) -> Body:
        body = self._clean(ids, thinking)
        body["choices"][0]["token_ids"] = ids
        return body

    def _logprobs(self, ids: list[int], thinking: Thinking) -> Body:
        return self._with_entries(ids, thinking, [self._tokenizer.spelled(token) for token in ids])

    def _logprobs_text(self, ids: list[int], thinking: Thinking) -> Body:
        """Show nothing for a token that ends inside a character; its last token shows the whole character."""
        shown: list[bytes] = []
        held = b""
        for token in ids:
            held += self._tokenizer.spelled(token)
            try:
                held.decode()
            except UnicodeDecodeError:
                shown.append(b"")
                continue
            shown.append(held)
            held = b""
        return self._with_entries(ids, thinking, shown)

    def _with_entries(self, ids: list[int], thinking: Thinking, pieces: list[bytes]) -> Body:
        body = self._clean(ids, thinking)
        body["choices"][0]["logprobs"] = {
            "content": [{"token": p.decode("utf-8", "replace"), "bytes": list(p), "logprob": 0.0} for p in pieces]
        }
        return body

    def _right_trimmed(self, ids: list[int], thinking: Thinking) -> Body:
        return self._edited(ids, thinking, {"reasoning": str.rstrip})

    def _trimmed(self, ids: list[int], thinking: Thinking) -> Body:
        return self._edited(ids, thinking, {"reasoning": str.strip, "content": str.strip})

    def _trimmed_whole(self, ids: list[int], thinking: Thinking) -> Body:
        """Trim the whole text before the reasoning is split off, as old SGLang does.

        White space before the close of the reasoning is kept.
        """
        return self._edited(ids, thinking, {"reasoning": str.lstrip, "content": str.strip})

    def _edited(self, ids: list[int], thinking: Thinking, edits: dict[str, Callable[[str], str]]) -> Body:
        body = self._clean(ids, thinking)
        message = body["choices"][0]["message"]
        for name, edit in edits.items():
            message[name] = edit(message[name] or "") or None
        return body

    def _end_free(self, ids: list[int], thinking: Thinking) -> Body:
        body = self._clean(ids, thinking)
        billed = len(ids) - (ids[-1] == self._record.role_id("end"))
        body["usage"] = {"prompt_tokens": 0, "completion_tokens": billed, "total_tokens": billed}
        return body

    def _beside(self, ids: list[int], thinking: Thinking) -> Body:
        close = self._record.role_id("think_close")
        reasoning = ids.index(close) + 1 if close in ids else 0
        body = self._clean(ids, thinking)
        body["usage"] = {
            "prompt_tokens": 0,
            "completion_tokens": len(ids) - reasoning,
            "total_tokens": len(ids),
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
        return body

    def _raw_tools(self, ids: list[int], thinking: Thinking) -> Body:
        """Send everything after the reasoning as text, with special tokens spelled out, except the end token."""
        body = self._clean(ids, thinking)
        if message_calls := body["choices"][0]["message"].pop("tool_calls", None):
            close, end = self._record.role_id("think_close"), self._record.role_id("end")
            after = ids[ids.index(close) + 1 :] if close in ids else ids
            text = b"".join(self._tokenizer.spelled(token) for token in after if token != end).decode(
                "utf-8", "replace"
            )
            body["choices"][0]["message"]["content"] = text
            if close not in ids and message_calls:
                body["choices"][0]["message"]["reasoning"] = None
        return body

    def _tag_in_content(self, ids: list[int], thinking: Thinking) -> Body:
        body = self._clean(ids, thinking)
        message = body["choices"][0]["message"]
        close = self._markers.text("think_close")
        if close is not None and self._record.role_id("think_close") in ids:
            message["content"] = f"{message['reasoning'] or ''}{close}{message['content'] or ''}"
            message["reasoning"] = None
        return body

    def _made_up_ids(self, ids: list[int], thinking: Thinking) -> Body:
        body = self._clean(ids, thinking)
        for number, call in enumerate(body["choices"][0]["message"].get("tool_calls", ())):
            call["id"] = f"call_{number:024x}"
        return body

    def _rewritten(self, ids: list[int], thinking: Thinking) -> Body:
        body = self._clean(ids, thinking)
        for call in body["choices"][0]["message"].get("tool_calls", ()):
            try:
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))
            except ValueError:
                continue
        return body

    def _no_usage(self, ids: list[int], thinking: Thinking) -> Body:
        body = self._clean(ids, thinking)
        del body["usage"]
        return body
