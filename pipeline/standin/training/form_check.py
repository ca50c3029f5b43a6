"""Check of the stand-in's form: greedy answers to prompts that it never saw, and the faults in their ids."""

import re
from collections.abc import Sequence

import orjson
import torch

from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.standin.model.decoder import LlamaDecoder
from pipeline.standin.model.live_vocabulary import LiveVocabulary
from pipeline.standin.model.llama import Llama
from pipeline.standin.training.answer_markers import AnswerMarkers

LONGEST = 192
"""Most tokens of an answer."""

_ROWS = 32


def greedy_answers(model: Llama, live: LiveVocabulary, prompts: Sequence[list[int]], end: int) -> list[list[int]]:
    """Return the most likely ids after each prompt, up to and including ``end``, or `LONGEST` of them."""
    written: list[list[int]] = [[] for _ in prompts]
    decoder = LlamaDecoder(model, live, _ROWS, max(map(len, prompts)) + LONGEST)
    waiting, going = list(range(len(prompts)))[::-1], list[int]()
    logits = torch.empty(0, len(live.ids) + 1, dtype=model.head.dtype)
    while waiting or going:
        while waiting and len(going) < _ROWS:
            going.append(waiting.pop())
            logits = torch.cat((logits, decoder.start(prompts[going[-1]])[None]))
        for number, place in zip(going, logits.argmax(dim=-1).tolist(), strict=True):
            written[number].append(int(live.ids[place] if place < len(live.ids) else live.unused[0]))
        for row in reversed(range(len(going))):
            if written[going[row]][-1] == end or len(written[going[row]]) == LONGEST:
                decoder.drop(row)
                going[row] = going[-1]
                going.pop()
        logits = decoder.step([written[number][-1] for number in going]) if going else logits[:0]
    return written


def form_fault(marks: AnswerMarkers, tokenizer: Tokenizer, ids: Sequence[int], wanted_calls: int) -> str | None:
    """Return the first fault in the form of an answer, or None.

    The form is one think-close, the end token last, and the wanted number of calls with valid JSON.
    """
    if not ids or ids[-1] != marks.end:
        return "no end token"
    if (closes := list(ids).count(marks.think_close)) != 1:
        return f"{closes} think-closes"
    rest = list(ids[ids.index(marks.think_close) + 1 : -1])
    if not wanted_calls:
        return "a special token in the text" if any(token in tokenizer.special_texts for token in rest) else None
    if marks.tools_open not in rest or rest[-1] != marks.tools_close:
        return "no whole tool section"
    return _section_fault(marks, tokenizer, rest[rest.index(marks.tools_open) + 1 : -1], wanted_calls)


def _section_fault(marks: AnswerMarkers, tokenizer: Tokenizer, section: list[int], wanted: int) -> str | None:
    calls = 0
    while section:
        if section[0] != marks.call_open or marks.call_close not in section:
            return "a call that is not opened or not closed"
        end = section.index(marks.call_close)
        if fault := _call_fault(marks, tokenizer, section[1:end]):
            return fault
        section = section[end + 1 :]
        calls += 1
    return None if calls == wanted else f"{calls} calls where {wanted} were asked for"


def _call_fault(marks: AnswerMarkers, tokenizer: Tokenizer, call: list[int]) -> str | None:
    if call.count(marks.call_args) != 1:
        return "a call without arguments"
    at = call.index(marks.call_args)
    name = tokenizer.decode_bytes(call[:at])
    if not re.fullmatch(rb"functions\.\w+:\d+", name):
        return f"a call named {name!r}"
    try:
        arguments = orjson.loads(tokenizer.decode_bytes(call[at + 1 :]))
    except orjson.JSONDecodeError:
        return "arguments that are not JSON"
    return None if isinstance(arguments, dict) else "arguments that are not an object"
