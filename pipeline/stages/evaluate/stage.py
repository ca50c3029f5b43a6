"""The `evaluate` stage: speculative decoding on held-out prompts, compared with plain greedy decoding."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.core.errors import EvaluationError, InputError
from pipeline.core.files.digests import sha256_file
from pipeline.core.files.json_file import read_model, write_json
from pipeline.core.files.jsonl import read_jsonl
from pipeline.core.sections import Section
from pipeline.drafter.checkpoint import load_drafter
from pipeline.drafter.drafter import Drafter, initialize
from pipeline.drafter.estimate import Estimate, JudgedPack, estimate
from pipeline.drafter.target_argmax import TargetArgmax
from pipeline.drafter.unroll import Pack
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.rendering import PromptRenderer
from pipeline.model.special_tokens import open_tokenizer
from pipeline.model.weights.devices import use_threads
from pipeline.model.weights.target import Target, open_model
from pipeline.stages.evaluate.config import EvaluateSection
from pipeline.stages.evaluate.proposers import ChainProposer, Oracle, Proposer
from pipeline.stages.evaluate.speculate import AcceptanceCounts, Conversation, speculate
from pipeline.stages.evaluate.target_decoder import GreedyTarget, TargetDecoder, greedy, padded

_DIGITS = 6


class Config(Section):
    """Slice of the config that this stage reads."""

    evaluate: EvaluateSection
    digest: str | None
    """Sha256 of the prompt file, so that a change of it reruns this stage."""


@dataclass(frozen=True, slots=True)
class HeldoutPrompt:
    """A held-out prompt."""

    dataset: str
    prompt: list[int]


def run(config: Config, *, checkpoint: Path, record: Path, model: Path, eval: Path) -> None:  # noqa: A002
    """Decode with and without the drafter and write the acceptance.

    Speed goes to the terminal only, since it differs each time.

    Raises:
        EvaluationError: speculative decoding wrote other tokens than plain decoding.

    """
    settings = config.evaluate
    use_threads(settings.threads)
    checked = read_model(record, TargetRecord)
    questions = read_heldout_prompts(settings, config.digest, checked)
    target = open_model(model, dtype=settings.dtype, device=settings.device)
    embedding = target.model.get_input_embeddings().weight
    drafter = load_drafter(checkpoint, embedding, target.source.sha256).to(target.device)
    end = checked.role_id("end")
    assert end is not None, "the schema of a target requires the role `end`"
    bench = DecodingBench(target, drafter.config.layer_ids, settings, end)
    answers = bench.plain(questions)
    talks = bench.drafted("drafter", questions, answers, lambda _batch: ChainProposer(drafter))
    anchors = _anchors(bench, questions, answers, drafter)
    offline = bench.offline(drafter, questions, answers)
    identical = sum(talk.written == answer for talk, answer in zip(talks, answers, strict=True))
    write_json(eval, _report(settings, questions, talks, anchors, offline, identical))


def read_heldout_prompts(settings: EvaluateSection, digest: str | None, record: TargetRecord) -> list[HeldoutPrompt]:
    """Read and render the held-out prompts.

    Raises:
        InputError: a line has no messages, the file changed since it was composed, or it has no prompt.

    """
    path = Path(settings.path)
    if digest is not None and path.is_file() and (found := sha256_file(path)) != digest:
        raise InputError(
            f"{path}: has digest {found[:16]}, build/config.json has {digest[:16]}: it changed since; run `dvc repro`"
        )
    renderer = PromptRenderer(record, open_tokenizer(record))
    questions: list[HeldoutPrompt] = []
    for number, line in read_jsonl(path):
        if settings.limit is not None and len(questions) == settings.limit:
            break
        if not isinstance(line, dict) or not isinstance(line.get("messages"), list):
            raise InputError(f"{path}:{number}: needs an object with a list of messages; found {str(line)[:80]}")
        try:
            prompt = renderer.render(line["messages"], line.get("tools"))
        except InputError as error:
            raise InputError(f"{path}:{number}: {error}") from error
        questions.append(HeldoutPrompt(str(line.get("dataset", "all")), prompt))
    if not questions:
        raise InputError(f"{path}: has no prompts; evaluation needs at least one line {{messages, tools?, dataset?}}")
    return questions


class DecodingBench:
    """Decodes prompts in batches, checks every answer against plain decoding, and measures the time."""

    def __init__(self, target: Target, layer_ids: list[int], settings: EvaluateSection, end: int) -> None:
        self.target, self.settings = target, settings
        argmax = TargetArgmax(target.head.weight)
        self.setup = GreedyTarget(target, argmax, layer_ids, end, settings.max_new_tokens)

    def _batches(self, count: int) -> list[range]:
        return [range(start, min(start + self.settings.batch, count)) for start in range(0, count, self.settings.batch)]

    def plain(self, questions: list[HeldoutPrompt]) -> list[list[int]]:
        """Return the answers of plain greedy decoding."""
        begin, answers = time.monotonic(), []
        for batch in self._batches(len(questions)):
            answers += greedy(self.setup, [questions[n].prompt for n in batch])
        _show("plain greedy", sum(map(len, answers)), time.monotonic() - begin)
        return answers

    def drafted(
        self, name: str, questions: list[HeldoutPrompt], answers: list[list[int]], make: Any
    ) -> list[Conversation]:
        """Return the answers of speculative decoding.

        ``make`` returns a `Proposer` for the numbers of a batch of prompts.

        Raises:
            EvaluationError: an answer differs from the plain one in float32; in narrower types near-ties flip.

        """
        begin, talks = time.monotonic(), []
        for batch in self._batches(len(questions)):
            proposer: Proposer = make(batch)
            prompts = [questions[n].prompt for n in batch]
            talks += speculate(self.setup, proposer, prompts, self.settings.draft_tokens)
        _show(name, sum(len(talk.written) for talk in talks), time.monotonic() - begin)
        for number, (talk, answer) in enumerate(zip(talks, answers, strict=True)):
            if self.settings.dtype == "float32" and talk.written != answer:
                raise _divergence(name, number, talk.written, answer)
        return talks

    def offline(self, drafter: Drafter, questions: list[HeldoutPrompt], answers: list[list[int]]) -> Estimate:
        """Return the teacher-forced estimate on the answers.

        They are greedy, so their next token is the target's choice.
        """
        judged = []
        for number, answer in enumerate(answers):
            prompt = questions[number].prompt
            ids, positions, valid = padded([prompt + answer], self.target.device)
            aux = TargetDecoder(self.setup, 1).states(ids, positions, valid)[0].cpu()
            tokens = ids[0].cpu()
            place = torch.arange(len(tokens))
            mask = (place >= len(prompt)) & (place < len(tokens) - 1)  # what follows the last token is unknown
            judged.append(
                JudgedPack(
                    Pack(tokens, aux, aux[:, :0], mask.float(), (len(tokens),)), torch.cat([tokens[1:], tokens[:1]])
                )
            )
        return estimate(drafter, judged, self.settings.draft_tokens)


def _divergence(name: str, number: int, written: list[int], answer: list[int]) -> EvaluationError:
    """Return an error that shows the first difference of an answer from the plain one."""
    place = next(
        (at for at, (ours, plain) in enumerate(zip(written, answer, strict=False)) if ours != plain),
        min(len(written), len(answer)),
    )
    return EvaluationError(
        f"prompt {number} with {name}: speculative decoding wrote {written[place : place + 1]} at token {place}, "
        f"plain greedy decoding {answer[place : place + 1]}: they must be equal; a cache or a mask is wrong, or two "
        "tokens tie to the last bit"
    )


def _show(name: str, tokens: int, seconds: float) -> None:
    print(
        f"evaluate: {name}: {tokens:,} tokens in {seconds:.1f} s, {tokens / max(seconds, 1e-9):,.0f} tokens/s",
        flush=True,
    )


def _anchors(
    bench: DecodingBench, questions: list[HeldoutPrompt], answers: list[list[int]], drafter: Drafter
) -> dict[str, float]:
    """Return the acceptance length of an oracle and of an untrained drafter, on some of the prompts."""
    chosen = list(range(0, len(questions), max(1, len(questions) // bench.settings.anchors)))[: bench.settings.anchors]
    some, known = [questions[n] for n in chosen], [answers[n] for n in chosen]
    untrained = Drafter(drafter.config, drafter.embedding, drafter.used.cpu())
    initialize(untrained, bench.target.head.weight[drafter.used].float().cpu(), seed=1)
    untrained = untrained.to(bench.target.device)
    makers = {
        "oracle": lambda batch: Oracle([known[n] for n in batch]),
        "untrained": lambda _batch: ChainProposer(untrained),
    }
    return {
        name: round(_total(bench.drafted(name, some, known, make)).acceptance_length, _DIGITS)
        for name, make in makers.items()
    }


def _total(talks: list[Conversation]) -> AcceptanceCounts:
    total = AcceptanceCounts()
    for talk in talks:
        total.add(talk.counts)
    return total


def _summary(talks: list[Conversation]) -> dict[str, Any]:
    """Return the counts and rates of some conversations."""
    counts = _total(talks)
    return {
        "prompts": len(talks),
        "tokens": sum(len(talk.written) for talk in talks),
        "rounds": counts.rounds,
        "whole_rounds": counts.whole_rounds,
        "acceptance_length": round(counts.acceptance_length, _DIGITS),
        "tokens_per_round": round(counts.tokens_per_round, _DIGITS),
        "per_position": [round(share, _DIGITS) for share in counts.per_position],
    }


def _report(
    settings: EvaluateSection,
    questions: list[HeldoutPrompt],
    talks: list[Conversation],
    anchors: dict[str, float],
    offline: Estimate,
    identical: int,
) -> dict[str, Any]:
    """Return the content of eval.json."""
    names = sorted({question.dataset for question in questions})
    by_name = {
        name: [talk for question, talk in zip(questions, talks, strict=True) if question.dataset == name]
        for name in names
    }
    return {
        "draft_tokens": settings.draft_tokens,
        **_summary(talks),
        "identical_to_plain_greedy": identical,
        "datasets": {name: _summary(some) for name, some in by_name.items()},
        "anchors": anchors,
        "offline_estimate": {
            "acceptance_length": round(offline.length, _DIGITS),
            "per_position": [round(share, _DIGITS) for share in offline.per_position],
        },
    }
