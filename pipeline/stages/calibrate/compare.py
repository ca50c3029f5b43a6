"""Rebuilt ids against the true ones: equal, the same text cut otherwise, or another text."""

from collections.abc import Sequence
from typing import Any

from pipeline.answers.readings.chat_formats import Thinking, format_of, thinking_after
from pipeline.answers.readings.markers import Markers
from pipeline.answers.rungs.returned_ids import spans_of
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.calibrate.scores import Scores, Verdict

AROUND = 4
"""Tokens shown on each side of a first difference."""


class Judge:
    """Compares rows of one target."""

    def __init__(self, record: TargetRecord, tokenizer: Tokenizer) -> None:
        self._record = record
        self._tokenizer = tokenizer
        self._markers = Markers(record)
        self.thinking = format_of(record).thinking

    def verdict(self, rebuilt: Sequence[int] | None, truth: Sequence[int]) -> Verdict:
        """How rebuilt ids relate to the true ones."""
        if not rebuilt:
            return "none"
        if list(rebuilt) == list(truth):
            return "exact"
        return (
            "segmentation"
            if self._tokenizer.special_tokens_and_bytes(rebuilt) == self._tokenizer.special_tokens_and_bytes(truth)
            else "text"
        )

    def canonical(self, truth: Sequence[int], thinking: Thinking) -> bool:
        """Whether the model cut its text as the tokenizer does, span by span: only then can re-encoding be exact."""
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
        """Where two sequences part, and what stands there, decoded."""
        position = next(
            (n for n, (a, b) in enumerate(zip(rebuilt, truth, strict=False)) if a != b), min(len(rebuilt), len(truth))
        )
        window = slice(max(0, position - AROUND), position + AROUND)
        return {
            "position": position,
            "rebuilt": [self._tokenizer.show(token) for token in rebuilt[window]],
            "true": [self._tokenizer.show(token) for token in truth[window]],
        }


def judged(
    judge: Judge,
    scores: Scores,
    row: dict[str, Any],
    truth: list[int],
    record: TargetRecord,
    dataset: str | None = None,
) -> None:
    """Score one row of tokens.parquet against its true ids."""
    verdict = judge.verdict(row["completion_ids"], truth)
    canonical = (
        "canonical"
        if judge.canonical(truth, thinking_after(row["prompt_ids"], record) if row["prompt_ids"] else judge.thinking)
        else "sampled otherwise"
    )
    evidence = row["evidence"] or "none"
    groups = {
        "evidence": evidence,
        "provider": row["provider"] or "unknown",
        "status": row["status"],
        "segmentation": canonical,
        "evidence_and_segmentation": f"{evidence}, {canonical}",
    }
    if dataset is not None:
        groups["dataset"] = dataset
    example = None
    if verdict in ("segmentation", "text"):
        example = {
            "id": row["id"],
            "verdict": verdict,
            **{k: groups[k] for k in ("evidence", "provider")},
            **judge.first_difference(row["completion_ids"], truth),
        }
    scores.take(groups, verdict, example)
