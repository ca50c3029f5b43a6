"""Comparison of rebuilt ids with the true ones: equal, the same text cut in another way, or another text."""

from collections.abc import Sequence
from typing import Any

from pipeline.answers.readings.chat_formats import Thinking, format_of, thinking_after
from pipeline.answers.readings.markers import Markers
from pipeline.answers.rungs.returned_ids import spans_of
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.calibrate.scores import Match, Scores

AROUND = 4
"""Tokens shown on each side of a first difference."""


class IdComparison:
    """Compares ids of one target."""

    def __init__(self, record: TargetRecord, tokenizer: Tokenizer) -> None:
        self._record = record
        self._tokenizer = tokenizer
        self._markers = Markers(record)
        self._thinking = format_of(record).thinking

    def match(self, rebuilt: Sequence[int] | None, truth: Sequence[int]) -> Match:
        """Return how rebuilt ids relate to the true ones."""
        if not rebuilt:
            return "none"
        if list(rebuilt) == list(truth):
            return "exact"
        return (
            "segmentation"
            if self._tokenizer.special_tokens_and_bytes(rebuilt) == self._tokenizer.special_tokens_and_bytes(truth)
            else "text"
        )

    def thinking(self, prompt_ids: list[int]) -> Thinking:
        """Return the state in which a prompt leaves the model.

        Without ids it is the state after the usual prompt of the chat format.
        """
        return thinking_after(prompt_ids, self._record) if prompt_ids else self._thinking

    def canonical(self, truth: Sequence[int], thinking: Thinking) -> bool:
        """Return whether the model cut each span of its text as the tokenizer does.

        Only then can encoding the text again be exact.
        """
        for _, start, end in spans_of(truth, self._record, self._markers, thinking).spans:
            ids = list(truth[start:end])
            if end - start == 1 and ids[0] in self._tokenizer.special_texts:
                continue
            try:
                text = self._tokenizer.decode_bytes(ids).decode()
            except UnicodeDecodeError:
                return False
            if self._tokenizer.encode(text) != ids:
                return False
        return True

    def first_difference(self, rebuilt: Sequence[int], truth: Sequence[int]) -> dict[str, Any]:
        """Return the position of the first difference, and the tokens around it in both, decoded."""
        position = next(
            (n for n, (a, b) in enumerate(zip(rebuilt, truth, strict=False)) if a != b), min(len(rebuilt), len(truth))
        )
        window = slice(max(0, position - AROUND), position + AROUND)
        return {
            "position": position,
            "rebuilt": [self._tokenizer.show(token) for token in rebuilt[window]],
            "true": [self._tokenizer.show(token) for token in truth[window]],
        }


def score_row(
    comparison: IdComparison, scores: Scores, row: dict[str, Any], truth: list[int], dataset: str | None = None
) -> None:
    """Compare one row of tokens.parquet with its true ids, and count the result in `scores`."""
    match = comparison.match(row["completion_ids"], truth)
    canonical = comparison.canonical(truth, comparison.thinking(row["prompt_ids"]))
    segmentation = "canonical" if canonical else "sampled otherwise"
    evidence = row["evidence"] or "none"
    groups = {
        "evidence": evidence,
        "provider": row["provider"] or "unknown",
        "status": row["status"],
        "segmentation": segmentation,
        "evidence_and_segmentation": f"{evidence}, {segmentation}",
    }
    if dataset is not None:
        groups["dataset"] = dataset
    example = None
    if match in ("segmentation", "text"):
        example = {
            "id": row["id"],
            "verdict": match,
            "evidence": evidence,
            "provider": groups["provider"],
            **comparison.first_difference(row["completion_ids"], truth),
        }
    scores.add(groups, match, example)
