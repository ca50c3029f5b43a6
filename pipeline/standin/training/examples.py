"""Training examples: dialogues of the corpus as ids, in the target's chat format."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from pipeline.core.errors import ConfigError
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.rendering import PromptRenderer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.standin.corpus.dialogue import Dialogue, DialogueCall
from pipeline.standin.corpus.streams import KINDS, training
from pipeline.standin.training.answer_markers import AnswerMarkers
from pipeline.standin.training.packed_rows import TrainingExample


def to_example(
    record: TargetRecord, tokenizer: Tokenizer, renderer: PromptRenderer, dialogue: Dialogue
) -> TrainingExample:
    """Render the prompt, and write the answer: markers by id, texts encoded with special tokens off."""
    marks = AnswerMarkers.of(record)
    answer = [*tokenizer.encode(dialogue.reasoning), marks.think_close, *tokenizer.encode(dialogue.content)]
    if dialogue.calls:
        calls = [token for call in dialogue.calls for token in _call(marks, tokenizer, call)]
        answer += [marks.tools_open, *calls, marks.tools_close]
    return TrainingExample(renderer.render(dialogue.messages, dialogue.tools), [*answer, marks.end])


def _call(marks: AnswerMarkers, tokenizer: Tokenizer, call: DialogueCall) -> list[int]:
    name = tokenizer.encode(f"functions.{call.name}:{call.index}")
    return [marks.call_open, *name, marks.call_args, *tokenizer.encode(call.arguments), marks.call_close]


OTHER_SEGMENTATION = 0.08
"""Share of training answers in which one word is split differently than the tokenizer splits it.

Real models sample such splits (6.5 % of 1,735 real Kimi-K2.5 answers); a stand-in that never did would make re-encoding
look exact.
"""


def split_one_word(tokenizer: Tokenizer, ids: list[int], rng: Random) -> list[int]:
    """Replace one ordinary token of several characters by two with the same text, the left one as long as possible."""
    for at in rng.sample(range(len(ids)), len(ids)):
        text = tokenizer.token_bytes(ids[at]).decode("ascii", "replace")
        for cut in range(len(text) - 1, 0, -1):
            halves = tokenizer.encode(text[:cut]), tokenizer.encode(text[cut:])
            if text.isascii() and [len(half) for half in halves] == [1, 1]:
                return [*ids[:at], *halves[0], *halves[1], *ids[at + 1 :]]
    return ids


def training_examples(record: TargetRecord, tokenizer: Tokenizer, tokens: int) -> list[TrainingExample]:
    """Return dialogues of all kinds in turn, until they hold ``tokens`` ids.

    Raises:
        ConfigError: the templates do not give that many.

    """
    renderer = PromptRenderer(record, tokenizer)
    rng = Random("aerie segmentation 1")  # noqa: S311 - a corpus, not a secret
    examples: list[TrainingExample] = []
    total = 0
    for dialogue in _in_turn():
        if total >= tokens:
            break
        example = to_example(record, tokenizer, renderer, dialogue)
        if rng.random() < OTHER_SEGMENTATION:
            example = replace(example, answer=split_one_word(tokenizer, example.answer, rng))
        examples.append(example)
        total += len(example.prompt) + len(example.answer)
    if total < tokens:
        raise ConfigError(
            f"target.tiny.tokens is {tokens}; the corpus has no more than {total} before one of its kinds repeats "
            "itself: lower it"
        )
    return examples


def _in_turn() -> Iterator[Dialogue]:
    streams = [training(kind) for kind in KINDS]
    for dialogues in zip(*streams, strict=False):  # until one kind has nothing new to say
        yield from dialogues
