"""Conversations of the corpus as ids, in the target's chat format."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from pipeline.core.errors import ConfigError
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.rendering import PromptRenderer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.standin.corpus.corpus import KINDS, training
from pipeline.standin.corpus.sample import Call, Conversation
from pipeline.standin.training.answer_markers import Marks
from pipeline.standin.training.learn import Example


def to_example(
    record: TargetRecord, tokenizer: Tokenizer, renderer: PromptRenderer, conversation: Conversation
) -> Example:
    """Render the prompt, and put the answer's markers by id and its texts with special tokens off."""
    marks = Marks.of(record)
    answer = [*tokenizer.encode(conversation.reasoning), marks.think_close, *tokenizer.encode(conversation.content)]
    if conversation.calls:
        calls = [token for call in conversation.calls for token in _call(marks, tokenizer, call)]
        answer += [marks.tools_open, *calls, marks.tools_close]
    return Example(renderer.render(conversation.messages, conversation.tools), [*answer, marks.end])


def _call(marks: Marks, tokenizer: Tokenizer, call: Call) -> list[int]:
    name = tokenizer.encode(f"functions.{call.name}:{call.index}")
    return [marks.call_open, *name, marks.call_args, *tokenizer.encode(call.arguments), marks.call_close]


OTHER_SEGMENTATION = 0.08
"""Share of training answers in which one word is split as the tokenizer would not split it. Real models sample such splits (6.5 % of
1,735 real Kimi-K2.5 answers); a stand-in that never did would make re-encoding look exact."""


def split_one_word(tokenizer: Tokenizer, ids: list[int], rng: Random) -> list[int]:
    """Replace one ordinary token of several characters by two that spell the same; the left one as long as can be."""
    for at in rng.sample(range(len(ids)), len(ids)):
        text = tokenizer.token_bytes(ids[at]).decode("ascii", "replace")
        for cut in range(len(text) - 1, 0, -1):
            halves = tokenizer.encode(text[:cut]), tokenizer.encode(text[cut:])
            if text.isascii() and [len(half) for half in halves] == [1, 1]:
                return [*ids[:at], *halves[0], *halves[1], *ids[at + 1 :]]
    return ids


def training_examples(record: TargetRecord, tokenizer: Tokenizer, tokens: int) -> list[Example]:
    """Conversations of all kinds in turn, until they hold ``tokens`` ids.

    Raises:
        ConfigError: the templates do not give so many.

    """
    renderer = PromptRenderer(record, tokenizer)
    rng = Random("aerie segmentation 1")  # noqa: S311 - a corpus, no secret
    examples: list[Example] = []
    total = 0
    for conversation in _in_turn():
        if total >= tokens:
            break
        example = to_example(record, tokenizer, renderer, conversation)
        if rng.random() < OTHER_SEGMENTATION:
            example = replace(example, answer=split_one_word(tokenizer, example.answer, rng))
        examples.append(example)
        total += len(example.prompt) + len(example.answer)
    if total < tokens:
        raise ConfigError(
            f"target.tiny.tokens is {tokens}; the corpus has no more than {total} before one of its kinds repeats itself: lower it"
        )
    return examples


def _in_turn() -> Iterator[Conversation]:
    streams = [training(kind) for kind in KINDS]
    for conversations in zip(*streams, strict=False):  # until one kind has nothing new to say
        yield from conversations
