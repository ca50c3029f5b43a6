"""Synthetic answers with their true ids, from a seed: many kinds of text, with and without tools.

Half of them have the tokenizer's own segmentation, half have another one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from pipeline.answers.readings.markers import Markers, Piece
from pipeline.answers.rungs.logprobs import Vocabulary
from pipeline.answers.segmented_ids import Encoder, assemble
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer

WORDS = [
    "the",
    "a",
    "of",
    "to",
    "and",
    "in",
    "is",
    "it",
    "that",
    "for",
    "as",
    "with",
    "on",
    "be",
    "at",
    "this",
    "by",
    "from",
    "or",
    "an",
    "are",
    "not",
    "have",
    "but",
    "which",
    "one",
    "all",
    "were",
    "when",
    "we",
    "there",
    "can",
    "more",
    "if",
    "out",
    "so",
    "what",
    "up",
    "said",
    "about",
    "other",
    "into",
    "than",
    "its",
    "time",
    "only",
    "could",
    "new",
    "them",
    "man",
    "some",
    "these",
    "then",
    "two",
    "first",
    "may",
    "any",
    "like",
    "my",
    "now",
    "over",
    "such",
    "our",
    "even",
    "most",
    "me",
    "state",
    "after",
    "also",
    "made",
    "many",
    "did",
    "must",
    "before",
    "back",
    "see",
    "through",
    "way",
    "where",
    "get",
    "much",
    "go",
    "well",
    "your",
    "know",
    "should",
    "down",
    "work",
    "year",
    "because",
    "come",
    "people",
    "just",
    "say",
    "each",
    "those",
    "take",
    "day",
    "good",
    "how",
    "long",
    "rollouts",
    "prefill",
    "undoing",
    "having",
    "estimated",
    "tokenizer",
    "vocabulary",
    "segmentation",
    "reconstruct",
    "billing",
    "provider",
    "gradient",
    "hidden",
    "speculative",
    "drafter",
    "kernel",
    "latency",
]
CODE = (
    "def f(x: int) -> int:\n    return x * 2 + 1\n",
    "for i in range(10):\n\tprint(f'{i:>4} {i**2}')\n",
    "SELECT id, name FROM users WHERE age >= 21 ORDER BY name;",
    "const add = (a, b) => a + b;  // sum\n",
    "```python\nimport numpy as np\nx = np.zeros((3, 4), dtype=np.float32)\n```",
    '{"city": "Oslo", "days": [1, 2, 3], "metric": true}',
)
MATHS = ("$x^2 + y^2 = r^2$", "3.14159 * 2 = 6.28318", "\\frac{a}{b}", "1,234,567.89", "2^{10} = 1024")
OTHER = (
    "我在2024年用Python写了3个脚本，效果不错！",
    "Привет, мир",
    "emoji 😀👩‍👩‍👧‍👦 done",
    "naïve café",
    "日本語の文章です。",
    "مرحبا",
    "🇳🇴 flag",
    "tab\tand\r\nreturn",
    "\u2028sep\x85nel",
)
LITERALS = (
    "`<|im_end|>`",
    "the tag </think> closes it",
    "`<|tool_calls_section_begin|>` opens a section",
    "<|im_start|> is ChatML",
)
ENDS = (".", "!", "", ":", ")", "```", "。")
SEAMS = {
    "reasoning_end": ("", "\n", "\n\n"),
    "content_start": ("", "\n\n", "\n"),
    "content_end": ("", "\n"),
    "reasoning_start": ("", " ", "\n"),
}
SEAM_CHANCE = 0.15


@dataclass(frozen=True, slots=True)
class SyntheticAnswer:
    """One answer: its ids, its shape, and whether its segmentation is the tokenizer's own."""

    ids: list[int]
    shape: str
    canonical: bool


def synthetic_answers(record: TargetRecord, tokenizer: Tokenizer, count: int, seed: int) -> Iterator[SyntheticAnswer]:
    """Yield ``count`` answers; every second one has another segmentation than the tokenizer's own."""
    rng = Random(seed)
    maker = _Maker(record, tokenizer, rng)
    for number in range(count):
        shape = rng.choice(
            (
                "answer",
                "answer",
                "literal",
                "one call",
                "two calls",
                "call after text",
                "cut in reasoning",
                "cut in content",
                "cut in call",
            )
        )
        ids = maker.answer(shape)
        canonical = number % 2 == 0
        yield SyntheticAnswer(ids if canonical else maker.resampled(ids), shape, canonical)


def sentence(rng: Random) -> str:
    """Return a sentence, or a piece of code, mathematics or another script."""
    kind = rng.random()
    if kind < 0.6:
        return " ".join(rng.choices(WORDS, k=rng.randint(3, 14))).capitalize() + rng.choice(ENDS)
    return rng.choice(rng.choice((CODE, MATHS, OTHER)))


def text(rng: Random, longest: int) -> str:
    """Return one to ``longest`` sentences."""
    return rng.choice((" ", "\n", "\n\n")).join(sentence(rng) for _ in range(rng.randint(1, longest)))


class _Maker:
    def __init__(self, record: TargetRecord, tokenizer: Tokenizer, rng: Random) -> None:
        self._markers = Markers(record)
        self._encode = Encoder(tokenizer, self._markers.may_hold)
        self._tokenizer = tokenizer
        self._rng = rng
        self._vocabulary = Vocabulary(record, tokenizer)

    def answer(self, shape: str) -> list[int]:
        """Return the ids of an answer of this shape, in the tokenizer's own segmentation."""
        rng = self._rng
        reasoning = self._seamed("reasoning", text(rng, 6))
        content = self._seamed("content", text(rng, 4))
        if shape == "literal":
            content = f"{content} {rng.choice(LITERALS)} {sentence(rng)}"
        pieces = [Piece("reasoning", None, reasoning), self._markers.piece("think_close")]
        if shape not in ("one call", "two calls"):
            pieces.append(Piece("content", None, content))
        if "call" in shape:
            pieces += self._section(2 if shape == "two calls" else 1)
        ids = assemble([*pieces, self._markers.piece("end")], self._encode).tolist()
        return self._cut(ids, shape) if shape.startswith("cut") else ids

    def _seamed(self, name: str, value: str) -> str:
        start, end = (self._seam(f"{name}_{side}") for side in ("start", "end"))
        return start + value.strip() + end

    def _seam(self, name: str) -> str:
        return self._rng.choice(SEAMS[name]) if self._rng.random() < SEAM_CHANCE else ""

    def _section(self, calls: int) -> list[Piece]:
        pieces = [self._markers.piece("tools_open")]
        for number in range(calls):
            name = self._rng.choice(("get_weather", "search", "send_message"))
            query = f"{self._rng.choice(WORDS)} {self._rng.choice(('Oslo', 'Zürich', '東京'))}"
            arguments = f'{{"query": "{query}", "limit": {self._rng.randint(1, 99)}}}'
            pieces += [
                self._markers.piece("call_open"),
                Piece("call_id", None, f"functions.{name}:{number}"),
                self._markers.piece("call_args", "call_args_open"),
            ]
            pieces += [Piece("call_args", None, arguments), self._markers.piece("call_close")]
        return [*pieces, self._markers.piece("tools_close")]

    def _cut(self, ids: list[int], shape: str) -> list[int]:
        close = ids.index(self._markers.roles["think_close"][1])
        if shape == "cut in reasoning":
            return ids[: self._rng.randint(1, close)]
        if shape == "cut in content":
            return ids[: self._rng.randint(close + 2, len(ids) - 1)]
        return ids[: self._rng.randint(ids.index(self._markers.roles["call_args"][1]) + 2, len(ids) - 3)]

    def resampled(self, ids: list[int]) -> list[int]:
        """Return ids of the same text in which one to three tokens are each replaced by two."""
        result = list(ids)
        for _ in range(self._rng.randint(1, 3)):
            for _ in range(32):
                place = self._rng.randrange(len(result))
                ways = list(self._vocabulary.splits(self._tokenizer.token_bytes(result[place]), 2))
                if ways:
                    result[place : place + 1] = self._rng.choice(ways)
                    break
        return result
