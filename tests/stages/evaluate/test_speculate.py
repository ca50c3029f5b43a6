"""Speculative decoding writes the tokens of plain greedy decoding with any proposer, and its counts are right."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import EvaluationError, InputError
from pipeline.drafter.chain import visible
from pipeline.drafter.drafter import Drafter, initialize
from pipeline.drafter.estimate import JudgedPack, estimate
from pipeline.drafter.target_argmax import TargetArgmax
from pipeline.drafter.unroll import Pack
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.rendering import PromptRenderer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.model.weights.target import Target, open_model
from pipeline.stages.evaluate.config import EvaluateSection
from pipeline.stages.evaluate.proposers import ChainProposer, CommittedTokens, Oracle
from pipeline.stages.evaluate.speculate import AcceptanceCounts, Conversation, speculate
from pipeline.stages.evaluate.stage import DecodingBench, HeldoutPrompt, read_heldout_prompts
from pipeline.stages.evaluate.target_decoder import GreedyTarget, TargetDecoder, greedy, padded
from tests.tiny import VOCAB, drafter_config, save_target

pytestmark = pytest.mark.slow

LAYER_IDS = [2, 4, 5]
END = 7
MOST = 24
DRAFTS = 4


def setup_of(target: Target) -> GreedyTarget:
    return GreedyTarget(target, TargetArgmax(target.head.weight), LAYER_IDS, END, MOST)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return open_model(
        save_target(tmp_path_factory.mktemp("target"), initializer_range=0.15), dtype="float32", device="cpu"
    )


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(VOCAB, (length,), generator=generator).tolist() for length in (3, 11, 6, 1, 19)]


@pytest.fixture(scope="module")
def drafter(target: Target) -> Drafter:
    """Return a drafter that is sometimes right.

    It applies the target's head to a random layer, over half of the vocabulary.
    """
    used = torch.arange(0, VOCAB, 2)
    drafter = Drafter(drafter_config(draft_vocab_size=len(used)), target.model.get_input_embeddings().weight, used)
    initialize(drafter, target.head.weight[used], 0)
    return drafter


def reference(target: Target, prompt: list[int]) -> list[int]:
    """Decode greedily without a cache: compute the whole text anew for each token."""
    written: list[int] = []
    with torch.inference_mode():
        while len(written) < MOST and (not written or written[-1] != END):
            written.append(int(target.model(torch.tensor([prompt + written])).logits[0, -1].argmax()))
    return written


def test_plain_decoding_in_batches_with_a_cache_writes_what_the_model_says_without_one(
    target: Target, prompts: list[list[int]]
) -> None:
    assert greedy(setup_of(target), prompts) == [reference(target, prompt) for prompt in prompts]


@pytest.mark.parametrize("drafts", [1, DRAFTS, 7])
def test_the_output_is_the_targets_own_whatever_the_drafter_says(
    target: Target, prompts: list[list[int]], drafter: Drafter, drafts: int
) -> None:
    talks = speculate(setup_of(target), ChainProposer(drafter), prompts, drafts)
    assert [talk.written for talk in talks] == [reference(target, prompt) for prompt in prompts]


def test_an_oracle_reaches_the_most_there_is_and_a_useless_drafter_gets_one(
    target: Target, prompts: list[list[int]]
) -> None:
    answers = greedy(setup_of(target), prompts)
    talks = speculate(setup_of(target), Oracle(answers), prompts, DRAFTS)
    assert [talk.written for talk in talks] == answers
    total = AcceptanceCounts()
    for talk in talks:
        total.add(talk.counts)
    assert total.acceptance_length == DRAFTS + 1
    assert total.per_position == [1.0] * DRAFTS
    never = [[(token + 1) % VOCAB for token in answer] for answer in answers]
    talks = speculate(setup_of(target), Oracle(never), prompts, DRAFTS)
    assert [talk.written for talk in talks] == answers
    assert all(
        talk.counts.acceptance_length == 1 and talk.counts.rounds == len(answer) - 1
        for talk, answer in zip(talks, answers, strict=True)
    )


class Half:
    """Proposes right tokens up to a number that changes with each round, then wrong ones: every kind of gap."""

    def __init__(self, answers: list[list[int]]) -> None:
        self._oracle, self._round = Oracle(answers), 0

    def propose(self, news: CommittedTokens, rows: list[int], written: list[int], count: int) -> torch.Tensor:
        drafts = self._oracle.propose(news, rows, written, count)
        for at in range(len(rows)):
            right = (self._round + 2 * at) % (count + 1)
            drafts[at, right:] = (drafts[at, right:] + 1) % VOCAB
        self._round += 1
        return drafts

    def keep(self, rows: torch.Tensor) -> None:
        """Do nothing: there is no cache."""


def test_rejected_tokens_leave_no_trace_in_the_targets_cache(target: Target, prompts: list[list[int]]) -> None:
    answers = greedy(setup_of(target), prompts)
    talks = speculate(setup_of(target), Half(answers), prompts, DRAFTS)
    assert [talk.written for talk in talks] == answers
    assert len({talk.counts.rounds for talk in talks}) > 1


def test_drafts_of_a_batch_are_those_of_each_conversation_alone(
    target: Target, prompts: list[list[int]], drafter: Drafter
) -> None:
    together = speculate(setup_of(target), ChainProposer(drafter), prompts, DRAFTS)
    for prompt, talk in zip(prompts, together, strict=True):
        (alone,) = speculate(setup_of(target), ChainProposer(drafter), [prompt], DRAFTS)
        assert alone.counts == talk.counts


def test_a_difference_from_plain_decoding_is_an_error_that_shows_both_tokens(target: Target) -> None:
    bench = DecodingBench(target, LAYER_IDS, EvaluateSection(path="x", draft_tokens=4, max_new_tokens=4), END)
    with pytest.raises(
        EvaluationError,
        match=r"prompt 0 with oracle: speculative decoding wrote \[\d+\] at token 2, plain greedy decoding \[999\]",
    ):
        answers = bench.plain([HeldoutPrompt("d", [1, 2, 3])])
        bench.drafted(
            "oracle", [HeldoutPrompt("d", [1, 2, 3])], [[*answers[0][:2], 999]], lambda _batch: Oracle(answers)
        )


def test_the_offline_estimate_equals_what_drafting_from_every_position_accepts(
    target: Target, prompts: list[list[int]], drafter: Drafter
) -> None:
    """Teacher-forced steps are exact for greedy text: count real chains from each start."""
    bench = DecodingBench(target, LAYER_IDS, EvaluateSection(path="x", draft_tokens=3, max_new_tokens=MOST), END)
    questions = [HeldoutPrompt("d", prompt) for prompt in prompts]
    answers = bench.plain(questions)
    found = bench.offline(drafter, questions, answers)
    starts, accepted = [0] * 3, [0] * 3
    for prompt, answer in zip(prompts, answers, strict=True):
        ids, positions, valid = padded([prompt + answer], target.device)
        aux = TargetDecoder(setup_of(target), 1).read(ids, positions, valid).aux
        for start in range(len(prompt), len(prompt) + len(answer) - 1):
            proposer = ChainProposer(drafter)
            news = CommittedTokens(aux[:, :start], ids[:, 1 : start + 1], positions[:, :start], valid[:, :start])
            drafts = proposer.propose(news, [0], [0], 3)[0].tolist()
            truth = (prompt + answer)[start + 1 : start + 4]
            for position in range(len(truth)):
                starts[position] += 1
                accepted[position] += drafts[: position + 1] == truth[: position + 1]
    assert (list(found.starts), list(found.accepted)) == (starts, accepted)
    assert sum(accepted) > 0


def test_a_vocabulary_the_drafter_lacks_counts_against_it(drafter: Drafter) -> None:
    generator = torch.Generator().manual_seed(0)
    pack = Pack(
        torch.tensor([1, 3, 5]),
        torch.randn(3, 96, generator=generator),
        torch.randn(3, 32, generator=generator),
        torch.tensor([0.0, 1.0, 1.0]),
        (3,),
    )
    odd = JudgedPack(pack, torch.tensor([1, 3, 5]))  # the drafter knows even tokens only
    assert estimate(drafter, [odd], 1).length == 1
    assert estimate(drafter, [odd], 1).starts == (2,)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from([END, 1, 2]), min_size=1, max_size=5), min_size=1, max_size=8), st.integers(2, 12)
)
def test_an_answer_stops_at_the_end_token_or_the_limit_and_a_cut_round_counts_only_its_tokens(
    rounds: list[list[int]], most: int
) -> None:
    talk = Conversation(3, [1], AcceptanceCounts(accepted_at=[0] * 4))
    plain = [1]
    for tokens in rounds:
        going = talk.take(tokens, END, most)
        plain += tokens
        if not going:
            break
    expected = plain[: plain.index(END) + 1] if END in plain else plain
    assert talk.written == expected[:most]
    assert talk.counts.tokens == len(talk.written) - 1
    assert talk.counts.rounds - talk.counts.whole_rounds in (0, 1)
    assert sum(talk.counts.accepted_at) <= talk.counts.tokens


def test_counts_are_summed_and_not_averaged() -> None:
    total = AcceptanceCounts()
    total.add(AcceptanceCounts(rounds=1, tokens=3, whole_rounds=1, accepted_at=[1, 1, 0, 0]))
    total.add(AcceptanceCounts(rounds=9, tokens=9, whole_rounds=9, accepted_at=[0, 0, 0, 0]))
    assert total.acceptance_length == pytest.approx(1.2)
    assert total.tokens_per_round == pytest.approx(1.2)
    assert total.per_position == pytest.approx([0.1, 0.1, 0, 0])


def test_a_mask_shows_each_slot_the_valid_ones_before_it_and_itself() -> None:
    mask = visible(torch.tensor([[True, False, True, True, False]]), 3)
    assert mask[0, 0].int().tolist() == [[1, 0, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 1, 1, 1]]


@pytest.mark.parametrize(
    ("lines", "digest", "message"),
    [
        ("", None, "has no prompts; evaluation needs at least one line"),
        (
            '{"messages": [{"role": "user", "content": "Hi"}]}\n{"prompt": "Hi"}\n',
            None,
            "heldout.jsonl:2: needs an object with a list of messages",
        ),
        ('{"messages": []}\n', "0" * 64, "build/config.json has 0000000000000000: it changed since; run `dvc repro`"),
    ],
)
def test_a_prompt_file_that_will_not_do_is_refused_with_its_line(
    tmp_path: Path, kimi: TargetRecord, lines: str, digest: str | None, message: str
) -> None:
    path = tmp_path / "heldout.jsonl"
    path.write_text(lines)
    with pytest.raises(InputError, match=message):
        read_heldout_prompts(EvaluateSection(path=str(path), draft_tokens=1, max_new_tokens=1), digest, kimi)


def test_held_out_prompts_are_rendered_as_the_target_reads_them(
    tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer
) -> None:
    """SpecForge 296: trained with another template than served."""
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    path = tmp_path / "heldout.jsonl"
    path.write_text(json.dumps({"messages": messages, "dataset": "sums"}))
    (question,) = read_heldout_prompts(EvaluateSection(path=str(path), draft_tokens=1, max_new_tokens=1), None, kimi)
    assert question == HeldoutPrompt("sums", PromptRenderer(kimi, tokenizer).render(messages))
    assert question.prompt[-1] == kimi.role_id("think_open")
