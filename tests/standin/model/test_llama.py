"""The small Llama: the same as transformers' own, with its cache, in a batch, packed, and through its checkpoint."""

from pathlib import Path

import pytest
import torch

from pipeline.core.errors import ArtifactError
from pipeline.standin.model.decoder import LlamaDecoder
from pipeline.standin.model.live_vocabulary import LiveVocabulary, compact, expand, make_live_vocabulary
from pipeline.standin.model.llama import Llama, LlamaShape, initial, load_checkpoint, save_checkpoint
from pipeline.standin.training.packed_rows import TrainingExample, pack, row_loss

pytestmark = pytest.mark.slow

VOCABULARY = 500
LIVE_IDS = set(range(0, 120, 3))


@pytest.fixture(scope="module")
def small() -> tuple[Llama, LiveVocabulary]:
    live = make_live_vocabulary(LIVE_IDS, VOCABULARY)
    return initial(LlamaShape(7, 24, 48, 2), len(live.ids) + 1, 0.2, torch.Generator().manual_seed(1)), live


@pytest.fixture(scope="module")
def folder(small: tuple[Llama, LiveVocabulary], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_checkpoint(path, expand(*small), end=3, pad=6, positions=128)
    return path


def reference(folder: Path, ids: list[int]) -> torch.Tensor:
    """Logits [T, vocabulary] by transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.generation_config.eos_token_id == 3
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def test_the_compact_model_found_in_a_checkpoint_is_the_one_that_was_expanded(
    small: tuple[Llama, LiveVocabulary], folder: Path
) -> None:
    model, live = small
    found, found_live = compact(load_checkpoint(folder))
    assert torch.equal(found_live.ids, live.ids)
    assert torch.equal(found_live.unused, live.unused)
    assert torch.equal(found_live.place, live.place)
    for one, other in zip(found.tensors(), model.tensors(), strict=True):
        assert torch.equal(one, other)


def test_cached_decoding_in_a_batch_gives_transformers_full_logits(
    small: tuple[Llama, LiveVocabulary], folder: Path
) -> None:
    model, live = small[0].to(torch.float64), small[1]
    ids = [3, 0, 9, 400, 33, 3, 117, 12, 99, 6, 300, 60]
    wanted = reference(folder, ids).log_softmax(-1)
    decoder = LlamaDecoder(model, live, rows=3, length=40)
    decoder.start([3, 6, 9])
    after = [decoder.start(ids[:5])]
    decoder.start([400])
    for number, token in enumerate(ids[5:]):
        if number == 2:
            decoder.drop(0)  # the last row moves into the free one; ours stays the second
        after.append(decoder.step([9, token, 12][: 3 if number < 2 else 2])[1])
    for position, logits in enumerate(after, 4):
        found = live.add_shared_mass(logits).log_softmax(-1)
        assert torch.allclose(found[:-1], wanted[position][live.ids], atol=1e-5)
        assert torch.isclose(found[-1], wanted[position][live.unused].logsumexp(0), atol=1e-5)


def test_a_row_gives_the_same_logits_alone_and_beside_others(small: tuple[Llama, LiveVocabulary]) -> None:
    model, live = small[0].to(torch.float64), small[1]
    alone, crowd = LlamaDecoder(model, live, 1, 64), LlamaDecoder(model, live, 9, 64)
    for row in range(8):
        crowd.start([3 * row] * (2 + 5 * row))
    first, second = alone.start([3, 6, 9]), crowd.start([3, 6, 9])
    for token in (30, 60, 90, 117):
        assert torch.allclose(first, second, atol=1e-12)
        first, second = alone.step([token])[0], crowd.step([0] * 8 + [token])[8]


def test_examples_packed_in_one_row_do_not_see_each_other(small: tuple[Llama, LiveVocabulary]) -> None:
    model, live = small
    examples = [
        TrainingExample([3, 6, 9], [12, 15, 18]),
        TrainingExample([21, 24], [27, 30, 33, 36]),
        TrainingExample([39], [42]),
    ]
    (together,) = pack(examples, live, 24)
    alone = [next(pack([example], live, 24)) for example in examples]
    apart = torch.stack([row_loss(model, live, row) for row in alone]).sum()
    assert torch.isclose(row_loss(model, live, together), apart, atol=1e-4)


def test_only_what_the_model_writes_has_a_loss(small: tuple[Llama, LiveVocabulary]) -> None:
    (row,) = pack([TrainingExample([3, 6, 9], [12, 15])], small[1], 8)
    assert row.labels.tolist() == [-1, -1, 12 // 3, 15 // 3, -1, -1, -1, -1]
    assert row.positions[0, :4].tolist() == [0, 1, 2, 3]


def test_the_loss_is_that_of_the_full_vocabulary(small: tuple[Llama, LiveVocabulary], folder: Path) -> None:
    model, live = small
    example = TrainingExample([3, 6], [400, 9])
    (row,) = pack([example], live, 3)
    logits = reference(folder, [3, 6, 400]).log_softmax(-1)
    # the shared entry is right for any unused id: its loss lacks the log of their number
    wanted = -(logits[1][live.unused].logsumexp(0) + logits[2][9])
    assert torch.isclose(row_loss(model, live, row).double(), wanted, atol=1e-4)


def test_rows_hold_every_example_whole_and_one_longer_than_a_row_has_its_own(
    small: tuple[Llama, LiveVocabulary],
) -> None:
    examples = [TrainingExample([3] * size, [6] * 3) for size in (4, 9, 30, 2, 2)]
    rows = list(pack(examples, small[1], 12))
    assert [int((row.labels >= 0).sum()) for row in rows] == [3, 3, 3, 6]
    assert [len(row.labels) for row in rows] == [12, 12, 32, 12]
    assert [int(row.owner.max()) + 1 for row in rows] == [1, 1, 1, 2]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_checkpoint_with_a_part_missing_or_cut_short_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    for other in folder.iterdir():
        (tmp_path / other.name).write_bytes(other.read_bytes())
    (tmp_path / name).write_bytes((folder / name).read_bytes()[:-40])
    with pytest.raises(ArtifactError, match=name):
        load_checkpoint(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ArtifactError, match=name):
        load_checkpoint(tmp_path)
