"""Made-up answers whose ends, gaps and seams mislead: each kind is a provider of its own, alone in its file.

Every kind says what the model emitted, and whether the bill decides a row: the text is shown as the model wrote it, in
the tokenizer's own segmentation, to the end token.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.answers_corpus import SyntheticAnswer
from pipeline.answers.lines import Job
from pipeline.answers.readings.endings import Bounds
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.calibrate.provider_simulator import ProviderSimulator

STOPS = ("\n\n", "###", ".", "User:")
LIMIT = 96
"""Most tokens of an answer where a kind has a limit."""


@dataclass(frozen=True, slots=True)
class HardRow:
    """A job with the ids that the model emitted."""

    job: Job
    ids: list[int]
    decided: bool
    """True when the bill decides the row."""


class HardEndings:
    """Makes the rows of each kind."""

    def __init__(self, record: TargetRecord, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._simulator = ProviderSimulator(record, tokenizer)
        self._rng = Random(seed)
        self._end, self._close = (record.role_id(role) or 0 for role in ("end", "think_close"))
        self.kinds: dict[str, Callable[[SyntheticAnswer, str], HardRow | None]] = {
            "stop strings": self._stop_string,
            "stop strings, ids": self._stop_string_ids,
            "another stop token": self._stop_token,
            "always stop, limit known": self._always_stop,
            "always stop, limit known, end not billed": self._always_stop,
            "always stop, limit not known": self._always_stop,
            "always stop, limit not known, end not billed": self._always_stop,
            "reasoning right-trimmed, alone": self._habit("text, reasoning right-trimmed"),
            "both ends trimmed, alone": self._habit("text, both ends trimmed"),
            "trimmed as a whole, alone": self._habit("text, trimmed as a whole"),
            "vLLM, reasoning's last line break trimmed": self._vllm,
            "empty content": self._empty_content,
            "empty content, close tag in content": self._empty_inline,
            "cut inside a character": self._cut_character,
            "text after the end token": self._after_end,
            "ran on after the end token": self._ran_on,
            "ids, one dropped": self._dropped,
            "ids without the end, one dropped": self._dropped_without_end,
            "calls cut, said to be whole": self._cut_calls,
        }

    def rows(self, kind: str, answers: Iterable[SyntheticAnswer]) -> Iterator[HardRow]:
        """Yield the rows of a kind; answers that it cannot use are left out."""
        make = self.kinds[kind]
        for number, answer in enumerate(answers):
            if (row := make(answer, kind)) is not None:
                yield HardRow(
                    row.job._replace(id=f"{kind}-{number}", body={"provider": kind, **row.job.body}),
                    row.ids,
                    row.decided and answer.canonical,
                )

    def _body(self, ids: list[int], habit: str = "text") -> dict[str, Any]:
        return self._simulator.habits[habit](ids, "open")

    def _row(self, body: dict[str, Any], ids: list[int], *, decided: bool, limit: int | None = None) -> HardRow:
        return HardRow(Job("", body, bounds=Bounds(limit)), ids, decided)

    def _ended(self, answer: SyntheticAnswer) -> bool:
        return answer.ids[-1] == self._end

    def _plain(self, answer: SyntheticAnswer) -> bool:
        """Return whether the answer has reasoning and content, no calls, and ended."""
        return answer.shape in ("answer", "literal")

    def _stopped(self, answer: SyntheticAnswer, by: str | int, shown: int) -> tuple[dict[str, Any], list[int]] | None:
        """Cut an answer in its content; `shown` of the last tokens are left out of the text."""
        first = answer.ids.index(self._close) + 2 if self._plain(answer) else len(answer.ids)
        if first >= len(answer.ids) - 1:
            return None
        extra = self._tokenizer.encode(by) if isinstance(by, str) else [by]
        kept = answer.ids[: self._rng.randint(first, len(answer.ids) - 1)]
        body = self._body(kept)
        body["choices"][0].update({"finish_reason": "stop", "native_finish_reason": "stop", "stop_reason": by})
        ids = [*kept, *extra]
        body["usage"] = {"completion_tokens": len(kept) + shown * len(extra)}
        return body, ids

    def _stop_string(self, answer: SyntheticAnswer, _kind: str) -> HardRow | None:
        if self._plain(answer) and self._rng.random() < 0.7:
            return self._row(self._body(answer.ids), answer.ids, decided=True)
        made = self._stopped(answer, self._rng.choice(STOPS), 1)
        return None if made is None else self._row(*made, decided=False)

    def _stop_string_ids(self, answer: SyntheticAnswer, _kind: str) -> HardRow | None:
        made = self._stopped(answer, self._rng.choice(STOPS), 1)
        if made is None:
            return None
        made[0]["choices"][0]["token_ids"] = made[1]
        return self._row(*made, decided=False)

    def _stop_token(self, answer: SyntheticAnswer, _kind: str) -> HardRow | None:
        made = self._stopped(answer, self._rng.choice((163585, 13)), 1)
        return None if made is None else self._row(*made, decided=False)

    def _always_stop(self, answer: SyntheticAnswer, kind: str) -> HardRow | None:
        ids = answer.ids[:LIMIT]
        if answer.shape.startswith("cut") and len(ids) < LIMIT:
            return None
        body = self._body(ids, "text, end token not billed" if "not billed" in kind else "text")
        calls = body["choices"][0]["message"].get("tool_calls")
        body["choices"][0].update(
            dict.fromkeys(("finish_reason", "native_finish_reason"), "tool_calls" if calls else "stop")
        )
        limit = LIMIT if "limit known" in kind else None
        return self._row(body, ids, decided=ids[-1] == self._end and len(ids) < LIMIT - 1, limit=limit)

    def _habit(self, name: str) -> Callable[[SyntheticAnswer, str], HardRow | None]:
        return lambda answer, _kind: self._row(self._body(answer.ids, name), answer.ids, decided=False)

    def _vllm(self, answer: SyntheticAnswer, _kind: str) -> HardRow | None:
        """Trim only line breaks that make one token with the sign before them, so that no bill is above its text."""
        close = answer.ids.index(self._close) if self._close in answer.ids else None
        if close is None or not self._ended(answer):
            return None
        text = self._tokenizer.decode_bytes(answer.ids[:close]).decode("utf-8", "replace").strip()
        if self._rng.random() < 0.2:
            text += "\n"
        ids = [*self._tokenizer.encode(text), *answer.ids[close:]]
        body = self._body(ids, "text, reasoning right-trimmed")
        return self._row({**body, "prompt_logprobs": None, "kv_transfer_params": None}, ids, decided=False)

    def _emptied(self, answer: SyntheticAnswer) -> list[int] | None:
        if self._close not in answer.ids or not self._plain(answer):
            return None
        return [*answer.ids[: answer.ids.index(self._close) + 1], self._end] if self._rng.random() < 0.2 else answer.ids

    def _empty_content(self, answer: SyntheticAnswer, _kind: str) -> HardRow | None:
        ids = self._emptied(answer)
        return None if ids is None else self._row(self._body(ids), ids, decided=True)

    def _empty_inline(self, answer: SyntheticAnswer, _kind: str) -> HardRow | None:
        """Let some reasonings spell the tag out: then another split may have the same count."""
        ids = self._emptied(answer)
        if ids is None:
            return None
        spelled = self._rng.random() < 0.3
        if spelled:
            ids = [*self._tokenizer.encode("Is </think> a tag? "), *ids]
        return self._row(
            self._body(ids, "text, close tag in content"), ids, decided=answer.shape == "answer" and not spelled
        )

    def _cut_character(self, answer: SyntheticAnswer, _kind: str) -> HardRow | None:
        """Cut inside a character that takes several tokens; the server says so, or that the answer stopped."""
        for place in range(1, len(answer.ids)):
            text = self._tokenizer.decode_bytes(
                [token for token in answer.ids[:place] if token not in self._tokenizer.special_texts]
            )
            try:
                text.decode()
            except UnicodeDecodeError:
                body = self._body(answer.ids[:place])
                if self._rng.random() < 0.3:
                    body["choices"][0].update(dict.fromkeys(("finish_reason", "native_finish_reason"), "stop"))
                return self._row(body, answer.ids[:place], decided=False)
        return None

    def _after_end(self, answer: SyntheticAnswer, _kind: str) -> HardRow | None:
        if not self._plain(answer):
            return None
        body = self._body(answer.ids)
        message = body["choices"][0]["message"]
        message["content"] = (message["content"] or "") + self._rng.choice(
            ("<|im_end|>[EOS]", "<|im_end|>\n", "<|im_end|><|im_user|>user<|im_middle|>And then?", "<|im_end|>")
        )
        return self._row(body, answer.ids, decided=answer.shape == "answer")

    def _ran_on(self, answer: SyntheticAnswer, _kind: str) -> HardRow | None:
        if not self._plain(answer):
            return None
        shown = self._rng.choice(("[EOS]", "<|im_user|>user<|im_middle|>And then?<|im_end|>", " More text."))
        body = self._body(answer.ids)
        message = body["choices"][0]["message"]
        message["content"] = (message["content"] or "") + "<|im_end|>" + shown
        extra: list[int] = []
        rest = shown
        while rest:
            first = min((t for t in self._tokenizer.special_ids if t in rest), key=rest.index, default="")
            before, _, rest = rest.partition(first) if first else (rest, "", "")
            extra += [*self._tokenizer.encode(before), *([self._tokenizer.special_ids[first]] if first else [])]
        ids = [*answer.ids, *extra]
        body["usage"] = {"completion_tokens": len(ids)}
        return self._row(body, ids, decided=False)

    def _dropped(self, answer: SyntheticAnswer, _kind: str) -> HardRow | None:
        return self._with_gap(answer, answer.ids)

    def _dropped_without_end(self, answer: SyntheticAnswer, _kind: str) -> HardRow | None:
        """Return no end token and bill none."""
        if not self._ended(answer):
            return None
        row = self._with_gap(answer, answer.ids[:-1])
        row.job.body["usage"] = {"completion_tokens": len(answer.ids) - 1}
        return row

    def _with_gap(self, answer: SyntheticAnswer, ids: list[int]) -> HardRow:
        body = self._body(answer.ids)
        gap = self._rng.randrange(len(ids)) if self._rng.random() < 0.2 else None
        body["choices"][0]["token_ids"] = ids if gap is None else [*ids[:gap], *ids[gap + 1 :]]
        return self._row(body, answer.ids, decided=False)

    def _cut_calls(self, answer: SyntheticAnswer, _kind: str) -> HardRow | None:
        """Say "tool_calls" of calls that the limit cut."""
        if answer.shape != "cut in call":
            return None
        body = self._body(answer.ids)
        body["choices"][0].update(dict.fromkeys(("finish_reason", "native_finish_reason"), "tool_calls"))
        return self._row(body, answer.ids, decided=False, limit=len(answer.ids))
