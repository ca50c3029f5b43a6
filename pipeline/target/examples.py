"""Conversations of the corpus as ids, in the target's chat format."""

from collections.abc import Iterator

from pipeline.schema.target import TargetRecord
from pipeline.target.conversation import Call, Conversation
from pipeline.target.corpus import KINDS, training
from pipeline.target.learn import Example
from pipeline.target.marks import Marks
from pipeline.tokens import PromptRenderer, Tokenizer


def to_example(record: TargetRecord, tokenizer: Tokenizer, renderer: PromptRenderer, conversation: Conversation) -> Example:
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


def training_examples(record: TargetRecord, tokenizer: Tokenizer, tokens: int) -> list[Example]:
    """Conversations of all kinds in turn, until they hold ``tokens`` ids."""
    renderer = PromptRenderer(record, tokenizer)
    examples: list[Example] = []
    total = 0
    for conversation in _in_turn():
        if total >= tokens:
            break
        example = to_example(record, tokenizer, renderer, conversation)
        examples.append(example)
        total += len(example.prompt) + len(example.answer)
    return examples


def _in_turn() -> Iterator[Conversation]:
    streams = [training(kind) for kind in KINDS]
    while True:
        yield from (conversation for stream in streams for conversation in [next(stream)])
