"""The `extract` stage: from accepted rows to the target's hidden states and their stamp."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.files.atomic import install_folder
from pipeline.core.files.digests import sha256_folder
from pipeline.core.files.json_file import read_json, to_json, write_json
from pipeline.core.files.tables import BATCH_ROWS, read_batches, write_batches
from pipeline.core.process.garbage_collection import no_collector
from pipeline.core.reuse.cache import open_cache
from pipeline.core.reuse.code_digest import code_digest
from pipeline.core.reuse.index import CachedPiece
from pipeline.core.reuse.segment_files import link_or_copy
from pipeline.core.sections import Section
from pipeline.formats.hidden_states import INDEX_NAME, MANIFEST
from pipeline.formats.schema.hidden import Manifest, Stamp, StoredDtype
from pipeline.formats.schema.hidden_index import INDEX
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.model.weights.devices import use_threads
from pipeline.model.weights.layer_ids import auxiliary_layers
from pipeline.model.weights.source import find_source, read_config
from pipeline.model.weights.target import Target
from pipeline.stages.extract.backend import Backend
from pipeline.stages.extract.config import EngineSection, ExtractSection
from pipeline.stages.extract.plan import InputRow, Selection, ShardPlan, batches, bytes_per_token, select, shards
from pipeline.stages.extract.shard_reuse import ReusableStates, states_key
from pipeline.stages.extract.writer import ShardWriter, check_space, close_partial, is_done, open_partial


class Config(Section):
    """Slice of the config that this stage reads."""

    extract: ExtractSection
    engine: EngineSection | None = None


@dataclass(frozen=True, slots=True)
class _ShardFolder:
    """The folder that takes the shards, and the plan by which it is filled."""

    folder: Path
    rows: list[InputRow]
    plans: list[ShardPlan]
    dtype: StoredDtype
    token_bytes: int
    """Disk space of one token."""


def run(config: Config, *, accepted: Path, verdict: Path, record: Path, model: Path, hidden: Path, stamp: Path) -> None:
    """Run the target over every accepted row and store its states.

    Raises:
        InputError: rows that are not this target's.
        ConfigError: layers that this target does not have.
        DiskError: the states do not fit.
        EngineError: the server cannot be reached, or returns other states than it was asked for.

    """
    read_json(verdict)
    settings = config.extract
    use_threads(settings.threads)
    source = find_source(model)
    shape = read_config(source).get_text_config()
    vocab_size = int(shape.vocab_size)
    if vocab_size != (recorded := int(read_json(record)["vocab_size"])):
        raise InputError(
            f"{source.name}: its config has a vocabulary of {vocab_size}; {record} has {recorded}: "
            "weights and target are not of one model"
        )
    layer_ids = auxiliary_layers(settings.layers, int(shape.num_hidden_layers))
    selection = select(accepted, read_batches(accepted, SCHEMA), settings, vocab_size)
    token_bytes = bytes_per_token(int(shape.hidden_size), settings.dtype)
    backend = _backend(config, model, layer_ids)
    rows = selection.rows
    _print_selection(selection, settings)
    with open_cache("extract", states_key(settings, source.sha256, layer_ids, backend.engine)) as cache:
        identity = [
            source.sha256,
            layer_ids,
            backend.engine,
            backend.confirms_layers,
            code_digest("extract", cache).hex(),
        ]
        partial = open_partial(hidden, _partial_key(settings, selection, identity), cache)
        if not backend.confirms_layers:
            _print_unconfirmed(backend.engine, partial)
        target = backend.start(rows[0] if rows else None)
        batched = batches(rows, 1 if backend.by_row else settings.tokens_per_batch, padded=backend.padded)
        plans = shards(rows, batched, token_bytes, settings.shard_bytes)
        reusable = ReusableStates(cache, rows, padded=backend.padded, confirmed=backend.confirms_layers)
        digests = _fill(_ShardFolder(partial, rows, plans, settings.dtype, token_bytes), backend, reusable)
    write_batches(partial / INDEX_NAME, INDEX, _index(selection, plans))
    write_json(partial / MANIFEST, _manifest(target, layer_ids, settings, backend.engine))
    close_partial(partial)
    install_folder(partial, hidden)
    write_json(stamp, _stamp(stamp.stem, selection, sha256_folder(hidden, digests)))


def _print_selection(selection: Selection, settings: ExtractSection) -> None:
    """Print how many rows are extracted, cut and left out; the stamp has the same counts."""
    rows, left_out = len(selection.rows), selection.left_out.total()
    line = f"extract: {rows:,} of {rows + left_out:,} accepted rows"
    if selection.cut:
        line += f"; {selection.cut:,} cut to max_length, {settings.max_length} tokens"
    if left_out:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(selection.left_out.items()))
        line += f"; left out: {reasons}"
    if left_out and not rows:
        line += f"; none is left: raise extract.max_length, which is {settings.max_length}"
    print(line, flush=True)


def _print_unconfirmed(engine: str, partial: Path) -> None:
    """Print what it means that the server does not report its layers."""
    line = f"extract: {engine} does not report which layers it returns, so their states are not kept for later builds"
    if done := len(list(partial.glob("shard-*"))):
        line += (
            f"; {done} shards of an earlier run stay: if the server had been launched for other layers then, "
            f"stop, remove {partial} and run again"
        )
    print(f"{line} (docs/extract-servers.md)", flush=True)


@no_collector()
def _backend(config: Config, model: Path, layer_ids: list[int]) -> Backend:
    """Make the backend that the config names, and import only what it needs."""
    if config.extract.backend == "transformers":
        from pipeline.stages.extract.local import LocalBackend

        return LocalBackend(config.extract, model, layer_ids)
    if config.engine is None:
        raise ConfigError(
            f"extract.backend is {config.extract.backend}, and there is no section engine; "
            "run `python -m pipeline compose`"
        )
    from pipeline.stages.extract.engines.client import ServerBackend

    return ServerBackend(config.extract, config.engine, model, layer_ids)


def _fill(target: _ShardFolder, backend: Backend, reusable: ReusableStates) -> dict[str, str]:
    """Make every shard, and return the SHA-256 of each by its name.

    A shard that a killed run finished stays, a whole one of an earlier build is linked, the others are made of reused
    and new states.

    Raises:
        DiskError: what is to be written does not fit.

    """
    digests: dict[str, str] = {}
    todo: list[tuple[ShardPlan, list[CachedPiece | None]]] = []
    for plan in target.plans:
        path = target.folder / plan.name
        if is_done(path, plan):
            digests[plan.name] = reusable.keep(plan, path)
        elif (whole := reusable.whole_file(plan, pieces := reusable.find(plan))) is not None:
            source, digests[plan.name] = whole
            link_or_copy(source, path)
        else:
            todo.append((plan, pieces))
    tokens, left = sum(plan.tokens for plan in target.plans), sum(plan.tokens for plan, _ in todo)
    check_space(target.folder, left * target.token_bytes, left, target.token_bytes)
    missing = (
        [target.rows[number] for number in batch]
        for plan, pieces in todo
        for batch, piece in zip(plan.batches, pieces, strict=True)
        if piece is None
    )

    def written(plan: ShardPlan, path: Path) -> None:
        digests[plan.name] = reusable.keep(plan, path)

    states, done = backend.states(missing), tokens - left
    with ShardWriter(target.folder, target.rows, target.dtype, written) as writer:
        for plan, pieces in todo:
            for batch, piece in zip(plan.batches, pieces, strict=True):
                finishes = plan if batch is plan.batches[-1] else None
                if piece is None:
                    writer.add(batch, *next(states), finishes)
                else:
                    writer.add_stored(reusable.read(piece), finishes)
            done += plan.tokens
            print(f"extract: {done:,} of {tokens:,} tokens", flush=True)
    return digests


def _partial_key(settings: ExtractSection, selection: Selection, identity: list[Any]) -> str:
    """Return a digest of all that decides the shards' bytes.

    That is the settings, the rows, and the identity of weights, engine and code.
    """
    digest = hashlib.sha256(to_json([settings.model_dump(mode="json"), *identity]))
    for row in selection.rows:
        digest.update(to_json([row.id, row.prompt_length, row.checksum]))
    return digest.hexdigest()


def _index(selection: Selection, plans: list[ShardPlan]) -> Iterator[pa.RecordBatch]:
    """Yield the index of the rows, in the order of the input."""
    rows = selection.rows
    shards_of, offsets = [""] * len(rows), [0] * len(rows)
    for plan in plans:
        offset = 0
        for number in (number for batch in plan.batches for number in batch):
            shards_of[number], offsets[number] = plan.name, offset
            offset += len(rows[number].token_ids)
    columns = {
        "id": [row.id for row in rows],
        "shard": shards_of,
        "offset": offsets,
        "length": [len(row.token_ids) for row in rows],
        "prompt_length": [row.prompt_length for row in rows],
        "checksum": [row.checksum for row in rows],
    }
    segments = INDEX.field("segments").type
    arrays = [
        *(pa.array(values, INDEX.field(name).type) for name, values in columns.items()),
        pa.concat_arrays([pa.array([], segments), *selection.segments]),
    ]
    yield from pa.Table.from_arrays(arrays, schema=INDEX).to_batches(BATCH_ROWS)


def _manifest(target: Target, layer_ids: list[int], settings: ExtractSection, engine: str) -> Manifest:
    return Manifest(
        layer_ids=layer_ids,
        layer_names=[
            target.norm_name if number == target.num_layers else target.layer_names[number] for number in layer_ids
        ],
        norm_name=target.norm_name,
        num_layers=target.num_layers,
        hidden_size=target.hidden_size,
        dtype=settings.dtype,
        vocab_size=target.vocab_size,
        target_sha256=target.source.sha256,
        backend=settings.backend,
        engine=engine,
    )


def _stamp(dataset: str, selection: Selection, sha256: str) -> Stamp:
    rows = selection.rows
    return Stamp(
        dataset=dataset,
        rows=len(rows),
        tokens=sum(len(row.token_ids) for row in rows),
        supervised_tokens=sum(len(row.token_ids) - row.prompt_length for row in rows),
        cut=selection.cut,
        left_out=dict(sorted(selection.left_out.items())),
        sha256=sha256,
    )
