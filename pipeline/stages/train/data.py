"""The training data: rows of all datasets, the held-out ones apart, packed anew in each epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.core.errors import ArtifactError, InputError
from pipeline.core.files.json_file import read_model
from pipeline.drafter.unroll import Pack, pack_rows
from pipeline.formats.hidden_states import HiddenRow, HiddenStates
from pipeline.formats.loss_mask import LossWeights
from pipeline.formats.schema.hidden import Manifest, Stamp
from pipeline.model.weights.ends import Ends
from pipeline.stages.train.split import heldout_prompts, prompt_key, trainable_rows


@dataclass(frozen=True, slots=True)
class RowRef:
    """The place of one conversation, whose states are not read yet."""

    dataset: str
    number: int
    id: str
    length: int
    prompt_length: int


@dataclass(frozen=True, slots=True)
class Corpus:
    """All rows of all datasets, and their common manifest."""

    manifest: Manifest
    states: dict[str, HiddenStates]
    stamps: dict[str, Stamp]
    training: list[RowRef]
    heldout: list[RowRef]
    weights_by_kind: LossWeights

    def read(self, refs: Sequence[RowRef], *, check: bool = False) -> list[HiddenRow]:
        """Read rows from the shards; with ``check``, refuse ids outside the vocabulary and non-finite values."""
        return [
            self.states[ref.dataset].check(ref.number) if check else self.states[ref.dataset][ref.number]
            for ref in refs
        ]

    def weights(self, ref: RowRef) -> torch.Tensor:
        """Return the weight of each token in the loss: float32 [length].

        It is 0 if the target did not write the token or the mask leaves it out.
        """
        return self.states[ref.dataset].loss_weights(ref.number, self.weights_by_kind)

    def packed(self, refs: Sequence[RowRef], *, check: bool = False) -> Pack:
        """Read rows and lay them end to end."""
        return pack_rows(self.read(refs, check=check), [self.weights(ref) for ref in refs])


def open_corpus(
    stamps: Path,
    hidden: dict[str, Path],
    names: list[str],
    target_sha256: str,
    heldout: float,
    weights: LossWeights,
    think_open: int | None = None,
) -> Corpus:
    """Open every dataset, check that the states are of one target, which is this build's, and split the rows.

    ``heldout`` is the share of rows to hold out, and ``think_open`` the id that opens a reasoning; `split` uses both.

    Raises:
        ArtifactError: a stamp is missing or left over, or states are of different targets, layers or widths.
        InputError: there is nothing to train on.

    """
    found = {path.stem for path in stamps.glob("*.json")}
    if found != set(names):
        raise ArtifactError(
            f"{stamps}: has stamps of {sorted(found)}; params.yaml names {sorted(names)}: missing "
            f"{sorted(set(names) - found)} (run `dvc repro`), left over {sorted(found - set(names))} "
            "(run `python -m pipeline compose`)"
        )
    read_stamps = {name: read_model(stamps / f"{name}.json", Stamp) for name in sorted(names)}
    states = {name: HiddenStates(hidden[name]) for name in sorted(names)}
    for name, dataset in states.items():
        holds, stamp = (name, len(dataset), sum(row.length for row in dataset.index)), read_stamps[name]
        if holds != (stamp.dataset, stamp.rows, stamp.tokens):
            raise ArtifactError(
                f"{hidden[name]}: has {holds[1]} rows of {holds[2]} tokens; its stamp {stamps / name}.json has "
                f"{stamp.rows} rows of {stamp.tokens} tokens for {stamp.dataset!r}: run `dvc repro extract@{name}`"
            )
    manifest = _common(states, target_sha256)
    refs = [
        RowRef(name, number, row.id, row.length, row.prompt_length)
        for name, dataset in states.items()
        for number in trainable_rows(dataset, weights)
        for row in [dataset.index[number]]
    ]
    if not refs:
        raise InputError(
            f"no row to train on in {sorted(names)}: all were left out, none was accepted, or train.loss_mask leaves "
            "out "
            f"all of their tokens; read build/<dataset>/audit/summary.json and the stamps in {stamps}"
        )
    keys = [prompt_key(states[ref.dataset], ref.number, think_open) for ref in refs]
    chosen = heldout_prompts(keys, heldout)
    return Corpus(
        manifest,
        states,
        read_stamps,
        [ref for ref, key in zip(refs, keys, strict=True) if key not in chosen],
        [ref for ref, key in zip(refs, keys, strict=True) if key in chosen],
        weights,
    )


def _common(states: dict[str, HiddenStates], target_sha256: str) -> Manifest:
    """Check that all manifests are equal except the stored dtype, and that the target is this build's."""
    first, *others = states.items()
    for name, dataset in others:
        for field in Manifest.model_fields:
            mine, theirs = getattr(first[1].manifest, field), getattr(dataset.manifest, field)
            if field != "dtype" and mine != theirs:
                raise ArtifactError(
                    f"hidden states of {first[0]} and {name} differ in {field}: {mine} and {theirs}; "
                    "run `dvc repro extract`"
                )
    manifest = first[1].manifest
    if manifest.target_sha256 != target_sha256:
        raise ArtifactError(
            f"hidden states are of target {manifest.target_sha256[:16]}; this build's weights are "
            f"{target_sha256[:16]}: "
            "run `dvc repro extract`"
        )
    return manifest


def check_shape(manifest: Manifest, ends: Ends, where: str) -> None:
    """Refuse states of another width or vocabulary than the target's.

    Raises:
        ArtifactError: with both numbers.

    """
    vocab_size, width = ends.embedding.shape
    for what, target, states in (
        ("hidden size", width, manifest.hidden_size),
        ("vocabulary", vocab_size, manifest.vocab_size),
    ):
        if target != states:
            raise ArtifactError(
                f"{where}: {what} {target}; the hidden states have {states}: they are of another target, "
                "run `dvc repro extract`"
            )


def count_supervised(corpus: Corpus) -> torch.Tensor:
    """Count how often each token is supervised in the training rows: int64 [vocab].

    Raises:
        ArtifactError: a token is outside the vocabulary.

    """
    counts = torch.zeros(corpus.manifest.vocab_size, dtype=torch.int64)
    for ref in corpus.training:
        states = corpus.states[ref.dataset]
        written = states.token_ids(ref.number)[corpus.weights(ref) > 0]
        if int(written.max()) >= len(counts) or int(written.min()) < 0:
            states.check(ref.number)
        counts += torch.bincount(written, minlength=len(counts))
    return counts


def packs_of_epoch(rows: Sequence[RowRef], tokens: int, seed: int, epoch: int) -> list[list[RowRef]]:
    """Return the packs of an epoch: rows shuffled by (seed, epoch), in packs of at most ``tokens``.

    A longer row is a pack alone.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order: list[int] = torch.randperm(len(rows), generator=generator).tolist()
    return pack([rows[number] for number in order], tokens)


def pack(rows: Sequence[RowRef], tokens: int) -> list[list[RowRef]]:
    """Put rows into packs in order, each into the first open pack with room.

    The fullest of eight open packs closes to make room.
    """
    done: list[list[RowRef]] = []
    open_packs: list[tuple[int, list[RowRef]]] = []
    for row in rows:
        for place, (used, members) in enumerate(open_packs):
            if used + row.length <= tokens:
                open_packs[place] = (used + row.length, [*members, row])
                break
        else:
            if len(open_packs) == 8:  # more open packs would fill better, and mix the order less
                fullest = max(range(8), key=lambda place: open_packs[place][0])
                done.append(open_packs.pop(fullest)[1])
            open_packs.append((row.length, [row]))
    return done + [members for _, members in open_packs]
