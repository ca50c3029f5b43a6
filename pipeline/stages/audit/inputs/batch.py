"""A batch of rows as flat arrays, with the facts that several checks need, each computed once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.core.files.tables import flat_lists
from pipeline.stages.audit.features.call_markup import CALL_ROLES, CallMarkup, read_markup
from pipeline.stages.audit.features.grams import Hashes, gram_hashes
from pipeline.stages.audit.features.retokenize import TextRun, text_runs
from pipeline.stages.audit.inputs.context import Context
from pipeline.stages.audit.inputs.messages import message_texts
from pipeline.stages.audit.inputs.response_facts import ResponseFacts, read_facts

Ints = NDArray[np.int64]
_TAIL = 1024
"""Number of tokens at the end of a prompt that are decoded to text."""


@dataclass(frozen=True)
class Ragged:
    """Lists of ids, laid end to end: row i is ``values[starts[i]:starts[i + 1]]``."""

    values: NDArray[np.int32]
    starts: Ints

    def __getitem__(self, row: int) -> NDArray[np.int32]:
        return self.values[self.starts[row] : self.starts[row + 1]]

    @property
    def lengths(self) -> Ints:
        """[rows]: length of each row."""
        return np.diff(self.starts)

    def where(self, flat: Ints) -> tuple[Ints, Ints]:
        """Return the row, and the position in the row, of each index into ``values``."""
        rows = np.searchsorted(self.starts, flat, side="right") - 1
        return rows, flat - self.starts[rows]


def ragged(column: Any) -> Ragged:
    """Return the flat arrays of a list<int32> column, which may be a slice of a larger one."""
    return Ragged(*flat_lists(column))


@dataclass(frozen=True)
class Hits:
    """The places where one id occurs in the completions of a batch."""

    rows: Ints
    positions: Ints
    counts: Ints
    """[rows of the batch]: number of occurrences in each row."""
    first: Ints
    """[rows of the batch]: position of the first occurrence in each row, or -1."""


def _delta(batch: "Batch", row: int) -> int | None:
    """Return billed minus held tokens of a row whose bill is in its response line alone, else None.

    A table that has the bill, but not the difference, has left the difference open on purpose.
    """
    billed = batch.answers[row].completion_tokens
    if billed is None or not batch.present[row] or batch.table.column("billed_tokens")[row].is_valid:
        return None
    return billed - int(batch.completion.lengths[row])


_FALLBACKS: dict[str, Callable[["Batch", int], Any]] = {
    "provider": lambda batch, row: batch.answers[row].provider,
    "finish_reason": lambda batch, row: batch.answers[row].finish_reason,
    "billed_tokens": lambda batch, row: batch.answers[row].completion_tokens,
    "count_delta": _delta,
}
"""Columns that a response line can fill where the table has null."""


class Batch:
    """Rows in the columns of schema/tokens.py, with the prompt line and the response line of each."""

    def __init__(
        self,
        context: Context,
        table: pa.RecordBatch,
        start: int,
        prompts: list[dict[str, Any] | None],
        responses: list[Any],
    ) -> None:
        """Take rows, the first of which is row ``start`` of the file; unknown prompts and responses are None."""
        self.context = context
        self.table = table
        self.start = start
        self.size = table.num_rows
        self.prompts = prompts
        self.responses = responses
        self._columns: dict[str, list[Any]] = {}
        self._hits: dict[int, Hits] = {}
        self._grams: dict[int, Hashes] = {}

    def column(self, name: str) -> list[Any]:
        """Return a column as Python values; the response lines fill nulls of provider, finish reason and bill."""
        if name not in self._columns:
            values = self.table.column(name).to_pylist()
            fill = _FALLBACKS.get(name)
            if fill is not None and None in values:
                values = [fill(self, row) if value is None else value for row, value in enumerate(values)]
            self._columns[name] = values
        return self._columns[name]

    @cached_property
    def ids(self) -> list[str]:
        """[rows]: id of each row."""
        return self.column("id")

    @cached_property
    def completion(self) -> Ragged:
        """Ids that the model emitted."""
        return ragged(self.table.column("completion_ids"))

    @cached_property
    def prompt(self) -> Ragged:
        """Ids that the model read."""
        return ragged(self.table.column("prompt_ids"))

    @cached_property
    def present(self) -> NDArray[np.bool_]:
        """[rows]: whether the row has a completion; a rejected row has none, so there is nothing to check."""
        return np.fromiter((status != "reject" for status in self.column("status")), dtype=np.bool_, count=self.size)

    @cached_property
    def cut(self) -> NDArray[np.bool_]:
        """[rows]: whether the token limit ended the answer, so that its end may be missing."""
        return np.fromiter(
            (reason == "length" for reason in self.column("finish_reason")), dtype=np.bool_, count=self.size
        )

    @cached_property
    def opened(self) -> NDArray[np.bool_]:
        """[rows]: whether the prompt opened the reasoning, so that the completion only closes it.

        The last ids of the prompt decide (a line break may follow the tag); without a prompt, the chat format does.
        """
        think_open, think_close = self.context.role("think_open"), self.context.role("think_close")
        if think_open is None:
            return np.zeros(self.size, dtype=np.bool_)
        opens, closes = (self._in_tail(token) for token in (think_open, think_close))
        unknown = (self.prompt.lengths == 0) & (self.context.record.chat == "kimi_k25")
        return np.asarray((opens & ~closes) | unknown)

    def _in_tail(self, token: int | None) -> NDArray[np.bool_]:
        """[rows]: whether an id is among the last three of the prompt."""
        in_tail = np.zeros(self.size, dtype=np.bool_)
        for back in range(1, 4):
            rows = np.flatnonzero(self.prompt.lengths >= back)
            in_tail[rows] |= self.prompt.values[self.prompt.starts[rows + 1] - back] == token
        return in_tail

    @cached_property
    def thinks(self) -> NDArray[np.bool_]:
        """[rows]: whether the completion must close a reasoning."""
        if self.context.role("think_close") is None or self.context.expect.reasoning == "forbidden":
            return np.zeros(self.size, dtype=np.bool_)
        if self.context.expect.reasoning == "required":
            return np.ones(self.size, dtype=np.bool_)
        closed: NDArray[np.bool_] = self.hits(self.context.role("think_close")).counts > 0
        unknown: NDArray[np.bool_] = self.prompt.lengths == 0
        return self.opened | closed | unknown

    def hits(self, token: int | None) -> Hits:
        """Return where an id occurs in the completions; None, for a role that the format lacks, occurs nowhere."""
        if token is None:
            token = -1
        if token not in self._hits:
            rows, positions = self.completion.where(np.flatnonzero(self.completion.values == token))
            first = np.full(self.size, -1, dtype=np.int64)
            first[rows[::-1]] = positions[::-1]
            self._hits[token] = Hits(rows, positions, np.bincount(rows, minlength=self.size), first)
        return self._hits[token]

    @cached_property
    def ordinary(self) -> NDArray[np.bool_]:
        """[ids of the completions]: whether the id has text."""
        return self.context.is_ordinary(self.completion.values)

    @cached_property
    def suspects(self) -> NDArray[np.uint8]:
        """[ids of the completions]: bits of `Context.suspects`."""
        return self.context.may_hold(self.completion.values)

    @cached_property
    def special(self) -> NDArray[np.bool_]:
        """[ids of the completions]: whether the id is in the vocabulary and has no text."""
        return np.asarray(~self.ordinary & (self.completion.values.view(np.uint32) < self.context.record.vocab_size))

    @cached_property
    def runs(self) -> list[list[TextRun]]:
        """[rows]: runs of ordinary tokens in each completion, decoded."""
        return text_runs(self.context, self.completion.values, self.completion.starts, self.ordinary)

    @cached_property
    def answers(self) -> list[ResponseFacts]:
        """[rows]: facts of each response line, such as usage and cost."""
        return [read_facts(line) for line in self.responses]

    @cached_property
    def markup(self) -> list[CallMarkup]:
        """[rows]: tool calls of each completion, read from the ids."""
        roles = [token for role in CALL_ROLES.values() if (token := self.context.role(role)) is not None]
        rows = set(self.completion.where(np.flatnonzero(np.isin(self.completion.values, roles)))[0].tolist())
        none = CallMarkup([], None)
        return [
            read_markup(self.context, self.completion[row].tolist(), cut=bool(self.cut[row])) if row in rows else none
            for row in range(self.size)
        ]

    @cached_property
    def calls(self) -> list[int]:
        """[rows]: number of tool calls of each completion."""
        return [len(markup.calls) for markup in self.markup]

    def grams(self, row: int, n: int) -> Hashes:
        """Return the hash of each n-gram of a row's completion.

        The hashes of the whole batch are computed at once; those of n-grams across two rows are never returned.
        """
        if n not in self._grams:
            self._grams[n] = gram_hashes(self.completion.values, n)
        start, end = self.completion.starts[row], self.completion.starts[row + 1] - n + 1
        return self._grams[n][start : max(start, end)]

    @cached_property
    def contents(self) -> list[str]:
        """[rows]: text of each answer between its reasoning and its tool calls."""
        starts = self.hits(self.context.role("think_close")).first
        stops = self.completion.lengths
        for role in ("tools_open", "call_open"):
            first = self.hits(self.context.role(role)).first
            stops = np.where((first > starts) & (first < stops), first, stops)
        unfinished = (starts < 0) & self.cut & self.opened
        bounds = zip(self.runs, starts.tolist(), stops.tolist(), unfinished.tolist(), strict=True)
        return [
            "" if nothing else "".join([run.text for run in runs if start < run.start < stop])
            for runs, start, stop, nothing in bounds
        ]

    @cached_property
    def reasonings(self) -> list[str]:
        """[rows]: text of each answer before the close of its reasoning; all of it where the limit came first."""
        closes = self.hits(self.context.role("think_close")).first
        stops = np.where((closes < 0) & self.cut & self.opened, self.completion.lengths, closes)
        return [
            "".join([run.text for run in runs if run.start < stop])
            for runs, stop in zip(self.runs, stops.tolist(), strict=True)
        ]

    @cached_property
    def messages(self) -> list[list[str]]:
        """[rows]: text of each message of the prompt; where they are not known, of each stretch of ordinary ids."""
        told = [message_texts(prompt) for prompt in self.prompts]
        if all(told):
            return told
        ordinary = self.context.is_ordinary(self.prompt.values)
        decoded = text_runs(self.context, self.prompt.values, self.prompt.starts, ordinary)
        return [texts or [run.text for run in runs] for texts, runs in zip(told, decoded, strict=True)]

    @cached_property
    def asked(self) -> list[str]:
        """[rows]: text of all messages of each prompt; where they are not known, of the end of its ids."""
        told = ["\n".join(message_texts(prompt)) for prompt in self.prompts]
        return [text or self.prompt_texts[row] for row, text in enumerate(told)]

    @cached_property
    def prompt_texts(self) -> list[str]:
        """[rows]: text at the end of each prompt, where the question is; bytes that are not UTF-8 become U+FFFD."""
        tails = [self.prompt[row][-_TAIL:] for row in range(self.size)]
        data, bounds = self.context.bytes_of(np.concatenate([*tails, np.zeros(0, dtype=np.int32)]))
        edges = bounds[np.cumsum([0, *map(len, tails)])].tolist()
        return [data[start:end].decode("utf-8", "replace") for start, end in pairwise(edges)]
