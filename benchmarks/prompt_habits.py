"""Prompts of servers with habits: how many rows have a wrong prompt or answer, and how many the bill decides.

    python -m benchmarks.prompt_habits            about a minute

Each shipped chat format gets conversations with tools, calls, results, reasoning in the history and other scripts. A
server reads each conversation by its habit, and bills what it reads. The truth is what the library `renderers` makes of
the conversation as that server read it. Rows with evidence count as known; weaker ones are counted beside them.
"""

import argparse
import json
import unicodedata
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from benchmarks.results import save
from pipeline.answers.lines import Job
from pipeline.answers.providers.habits import HabitCounts, learn
from pipeline.answers.rows import PackedRow, RowMaker
from pipeline.answers.segmented_ids import unpack
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.format_rules import RULES
from pipeline.model.rendering import PromptRenderer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.targets import open_target

Message = dict[str, Any]

WORDS = [
    "weather",
    "train",
    "river",
    "music",
    "garden",
    "market",
    "bridge",
    "window",
    "paper",
    "story",
    "light",
    "stone",
    "summer",
    "letter",
    "morning",
]
NAMES = ("Oslo", "Zürich", "São Paulo", "東京", "Kraków", "Nîmes")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
HIDDEN = "You are a helpful assistant of a cloud provider. Never talk about this text."


class Seen(NamedTuple):
    """A conversation as a server reads it."""

    messages: list[Message]
    tools: list[Any] | None
    thinking: bool | None = None
    counted: int = 0
    """Tokens that the server bills beside the prompt."""
    cut: int = 0
    """Tokens that it cuts from the left of the prompt."""


def sentence(rng: Random) -> str:
    """Return some words."""
    return " ".join(rng.choices(WORDS, k=rng.randint(4, 14))).capitalize() + "."


def conversation(rng: Random, chat: str) -> tuple[list[Message], list[Any] | None]:
    """Return messages and tools that the format's template renders as they are."""
    rules = RULES[chat]
    tools = [TOOL] if rules.tools and rng.random() < 0.6 else None
    messages: list[Message] = []
    if rng.random() < 0.7:
        messages.append({"role": "system", "content": sentence(rng)})
    if "developer" in rules.roles and rng.random() < 0.5:
        messages.append({"role": "developer", "content": sentence(rng)})
    for turn in range(rng.randint(1, 3)):
        if turn:
            messages += answered(rng, tools)
        text = f"{sentence(rng)} {rng.choice(NAMES)}?"
        if rng.random() < 0.3:
            text = unicodedata.normalize("NFD", text)
        parts = [{"type": "text", "text": text}, {"type": "text", "text": sentence(rng)}]
        messages.append({"role": "user", "content": parts if rng.random() < 0.3 else text})
    if tools and rng.random() < 0.5:
        messages += called(rng)
    return messages, tools


def called(rng: Random) -> list[Message]:
    """Return an assistant's call and its result."""
    arguments = json.dumps(
        {"city": rng.choice(NAMES), "days": rng.randint(1, 9)}, separators=(",", ":"), ensure_ascii=False
    )
    call = {
        "id": "functions.get_weather:0",
        "type": "function",
        "function": {"name": "get_weather", "arguments": arguments},
    }
    return [
        {"role": "assistant", "content": "", "reasoning_content": sentence(rng), "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.get_weather:0", "content": f"{rng.randint(-9, 30)} C"},
    ]


def answered(rng: Random, tools: list[Any] | None) -> list[Message]:
    """Return an earlier turn of the assistant."""
    before = called(rng) if tools and rng.random() < 0.4 else []
    return [*before, {"role": "assistant", "content": sentence(rng), "reasoning_content": sentence(rng)}]


def each(change: Callable[[Message], Message | None]) -> Callable[[list[Message], list[Any] | None], Seen]:
    """Make a habit from a change of each message; None drops it."""
    return lambda messages, tools: Seen([m for m in map(change, messages) if m is not None], tools)


def spaced(message: Message) -> Message:
    """Load the arguments of calls and write them anew, as a template with `tojson` does."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    dumped = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": json.dumps(json.loads(call["function"]["arguments"]), ensure_ascii=False),
            },
        }
        for call in calls
    ]
    return {**message, "tool_calls": dumped}


def joined(separator: str) -> Callable[[Message], Message]:
    """Join parts by a separator."""

    def change(message: Message) -> Message:
        content = message.get("content")
        text = separator.join(part["text"] for part in content) if isinstance(content, list) else content
        return {**message, "content": text}

    return change


def composed(message: Message) -> Message:
    """Bring all texts into NFC."""
    loaded: Message = json.loads(unicodedata.normalize("NFC", json.dumps(message, ensure_ascii=False)))
    return loaded


HABITS: dict[str, Callable[[list[Message], list[Any] | None], Seen]] = {
    "honest": Seen,
    "developer dropped": each(lambda m: None if m["role"] == "developer" else m),
    "reasoning lost": each(lambda m: {k: v for k, v in m.items() if k != "reasoning_content"}),
    "tools never rendered": lambda messages, _: Seen(messages, None),
    "arguments dumped anew": each(spaced),
    "parts joined by a line break": each(joined("\n")),
    "parts joined by a space": each(joined(" ")),
    "developer as system": each(lambda m: {**m, "role": "system"} if m["role"] == "developer" else m),
    "composed (NFC)": each(composed),
    "instant": lambda messages, tools: Seen(messages, tools, thinking=False),
    "a token counted twice": lambda messages, tools: Seen(messages, tools, counted=1),
    "truncated from the left": lambda messages, tools: Seen(messages, tools, cut=7),
    "hidden system prompt": lambda messages, tools: Seen([{"role": "system", "content": HIDDEN}, *messages], tools),
}
"""Habits of servers; the last two cannot be known from text and bill, so their rows must not be taken for known."""

UNDECIDABLE = ("truncated from the left", "hidden system prompt")


class SimulatedRow(NamedTuple):
    """A job, and the truth about it."""

    job: Job
    prompt: list[int]
    ids: list[int]
    decided: bool
    """Whether the bill tells the prompt from those of all other habits."""


class Server:
    """A server with one habit: it reads, answers and bills."""

    def __init__(self, record: TargetRecord, tokenizer: Tokenizer, rng: Random) -> None:
        self._record, self._tokenizer, self._rng = record, tokenizer, rng
        self._renderer = PromptRenderer(record, tokenizer)

    def answer(self, name: str, number: int, messages: list[Message], tools: list[Any] | None) -> SimulatedRow:
        """Return a row and its truth."""
        seen = HABITS[name](messages, tools)
        prompt = self._renderer.render(seen.messages, seen.tools, thinking=seen.thinking)[seen.cut :]
        close = self._record.role_id("think_close")
        thinks = close is not None and seen.thinking is not False
        reasoning, content = sentence(self._rng), sentence(self._rng)
        encode = self._tokenizer.encode
        ids = [*encode(content), self._record.role_id("end") or 0]
        if thinks:
            ids = self._thought(reasoning, content)
        if thinks and self._record.chat == "qwen3":  # a server that keeps what the template writes at the seams
            reasoning, content = f"\n{reasoning}\n", f"\n\n{content}"
        message = {"role": "assistant", "content": content, **({"reasoning": reasoning} if thinks else {})}
        usage = {"prompt_tokens": len(prompt) + seen.counted, "completion_tokens": len(ids)}
        body = {
            "provider": name,
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {**usage, "total_tokens": sum(usage.values())},
        }
        job = Job(f"{name}-{number}", body, messages, tools)
        return SimulatedRow(job, prompt, ids, self._is_decided(prompt, messages, tools))

    def _is_decided(self, prompt: list[int], messages: list[Message], tools: list[Any] | None) -> bool:
        """Return whether no server with another habit reads other ids of the same count."""
        for name, habit in HABITS.items():
            if name not in UNDECIDABLE:
                seen = habit(messages, tools)
                other = self._renderer.render(seen.messages, seen.tools, thinking=seen.thinking)
                if other != prompt and len(other) == len(prompt):
                    return False
        return True

    def _thought(self, reasoning: str, content: str) -> list[int]:
        """Return the ids of an answer with reasoning, as the template writes them."""
        encode = self._tokenizer.encode
        close, end = self._record.role_id("think_close") or 0, self._record.role_id("end") or 0
        if self._record.chat == "qwen3":
            opened = self._record.role_id("think_open") or 0
            return [opened, *encode(f"\n{reasoning}\n"), close, *encode(f"\n\n{content}"), end]
        return [*encode(reasoning), close, *encode(content), end]


def scores(target: str, count: int, seed: int) -> dict[str, Any]:
    """Return the counts of one format, by habit."""
    record, tokenizer = open_target(target)
    rng = Random(seed)
    maker = RowMaker(record, tokenizer, send_tools=RULES[record.chat].tools)
    server = Server(record, tokenizer, rng)
    result: dict[str, Any] = {}
    for name in HABITS:
        if name == "instant" and RULES[record.chat].thinking is None:
            continue
        rows = [server.answer(name, number, *conversation(rng, record.chat)) for number in range(count)]
        seen: dict[str | None, HabitCounts] = {}
        for simulated in rows:
            maker.observe(simulated.job, seen, 256)
        made = maker.rows([simulated.job for simulated in rows], learn(seen))
        tally: Counter[str] = Counter(rows=count)
        for simulated, row in zip(rows, made, strict=True):
            tally.update(verdict(row, simulated))
        result[name] = dict(tally)
    return result


def verdict(row: PackedRow, simulated: SimulatedRow) -> list[str]:
    """Return what a row adds to the counts."""
    right = unpack(row.prompt) == simulated.prompt and unpack(row.completion) == simulated.ids
    known = row.evidence in ("ids", "logprobs", "count") and row.prompt_evidence in ("ids", "count")
    decided = ["decided"] if simulated.decided else []
    if row.status != "accept":
        return ["flagged or rejected", *decided]
    found = [f"{'known' if known else 'weaker'}, {'right' if right else 'wrong'}"]
    return [*found, *decided, *(["decided, known, right"] if simulated.decided and known and right else [])]


def main() -> None:
    """Run, save and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=150, help="of each habit and format")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    formats = {
        target: scores(target, arguments.rows, arguments.seed) for target in ("kimi_k25", "qwen3", "deepseek_v3")
    }
    wrong = sum(tally.get("known, wrong", 0) for habits in formats.values() for tally in habits.values())
    decided = [tally for habits in formats.values() for name, tally in habits.items() if name not in UNDECIDABLE]
    save(
        "prompt_habits",
        {
            "formats": formats,
            "wrong_among_known": wrong,
            "wrong_on_weaker_evidence": sum(
                tally.get("weaker, wrong", 0) for habits in formats.values() for tally in habits.values()
            ),
            "recall_of_decided": round(
                sum(tally.get("decided, known, right", 0) for tally in decided)
                / sum(tally.get("decided", 0) for tally in decided),
                4,
            ),
        },
    )


if __name__ == "__main__":
    main()
