"""Accepted rows to the target's hidden states: `build/<dataset>/hidden/` and its stamp."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.files.atomic import install_folder
from pipeline.core.files.digests import sha256_folder
from pipeline.core.files.json_file import read_json, to_json, write_json
from pipeline.core.files.tables import BATCH_ROWS, read_batches, write_batches
from pipeline.core.process.garbage_collection import no_collector
from pipeline.core.reuse.cache import open_cache
from pipeline.core.reuse.code_digest import code_digest
from pipeline.core.reuse.index import Piece
from pipeline.core.reuse.segment_files import link_or_copy
from pipeline.core.sections import Section
from pipeline.formats.hidden_states import INDEX_NAME, MANIFEST
from pipeline.formats.schema.hidden import Manifest, Stamp
from pipeline.formats.schema.hidden_index import INDEX
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.model.weights.devices import use_threads
from pipeline.model.weights.layer_ids import auxiliary_layers
from pipeline.model.weights.source import find_source, read_config
from pipeline.model.weights.target import Target
from pipeline.stages.extract.backend import Backend
from pipeline.stages.extract.config import EngineSection, ExtractSection
from pipeline.stages.extract.plan import Row, Selection, ShardPlan, batches, bytes_per_token, select, shards
from pipeline.stages.extract.shard_reuse import KeptStates, decides
from pipeline.stages.extract.writer import ShardWriter, check_space, close_partial, is_done, open_partial


class Config(Section):
    """Slice of the config that this stage reads."""

    extract: ExtractSection
    engine: EngineSection | None = None


def run(config: Config, *, accepted: Path, verdict: Path, record: Path, model: Path, hidden: Path, stamp: Path) -> None:
    """Run the target over every accepted row and store its states.

    Raises:
        InputError: rows that are not this target's.
        ConfigError: layers that this target does not have.
        DiskError: the states will not fit.
        EngineError: the server is not there, or gives other states than asked for.

    """
    read_json(verdict)
    settings = config.extract
    use_threads(settings.threads)
    source = find_source(model)
    shape = read_config(source).get_text_config()
    vocab_size = int(shape.vocab_size)
    if vocab_size != (wanted := int(read_json(record)["vocab_size"])):
        raise InputError(
            f"{source.name}: its config has a vocabulary of {vocab_size}; {record} says {wanted}: weights and target are not of one model"
        )
    layer_ids = auxiliary_layers(settings.layers, int(shape.num_hidden_layers))
    selection = select(accepted, read_batches(accepted, SCHEMA), settings, vocab_size)
    token_bytes = bytes_per_token(int(shape.hidden_size), settings.dtype)
    backend = _backend(config, model, layer_ids)
    rows = selection.rows
    _say(selection, settings)
    with open_cache("extract", decides(settings, source.sha256, layer_ids, backend.engine)) as kept:
        partial = open_partial(
            hidden,
            _key(settings, selection, source.sha256, layer_ids, backend.engine, code_digest("extract", kept)),
            kept,
        )
        target = backend.start(rows[0] if rows else None)
        batched = batches(rows, 1 if backend.by_row else settings.tokens_per_batch, padded=backend.padded)
        plans = shards(rows, batched, token_bytes, settings.shard_bytes)
        digests = _fill(
            backend, KeptStates(kept, rows, padded=backend.padded), rows, plans, settings, partial, token_bytes
        )
    write_batches(partial / INDEX_NAME, INDEX, _index(selection, plans))
    write_json(partial / MANIFEST, _manifest(target, layer_ids, settings, backend.engine))
    close_partial(partial)
    install_folder(partial, hidden)
    write_json(stamp, _stamp(stamp.stem, selection, sha256_folder(hidden, digests)))


def _say(selection: Selection, settings: ExtractSection) -> None:
    """Tell how many rows there are and what became of the others; the stamp has the same counts."""
    rows, left_out = len(selection.rows), selection.left_out.total()
    said = f"extract: {rows:,} of {rows + left_out:,} accepted rows"
    if selection.cut:
        said += f"; {selection.cut:,} cut to max_length, {settings.max_length} tokens"
    if left_out:
        said += (
            f"; left out: {', '.join(f'{count:,} {reason}' for reason, count in sorted(selection.left_out.items()))}"
        )
    if left_out and not rows:
        said += f"; none is left: raise extract.max_length, which is {settings.max_length}"
    print(said, flush=True)


@no_collector()
def _backend(config: Config, model: Path, layer_ids: list[int]) -> Backend:
    """What computes the states; only what the chosen one needs is loaded."""
    if config.extract.backend == "transformers":
        from pipeline.stages.extract.local import LocalBackend

        return LocalBackend(config.extract, model, layer_ids)
    if config.engine is None:
        raise ConfigError(
            f"extract.backend is {config.extract.backend}, and there is no section engine; run `python -m pipeline compose`"
        )
    from pipeline.stages.extract.engines.client import ServerBackend

    return ServerBackend(config.extract, config.engine, model, layer_ids)


def _fill(
    backend: Backend,
    kept: KeptStates,
    rows: list[Row],
    plans: list[ShardPlan],
    settings: ExtractSection,
    partial: Path,
    token_bytes: int,
) -> dict[str, str]:
    """Make every shard: one that a killed run finished stays, one of an earlier build is linked, the others are put together from kept and new states.

    Returns the SHA-256 of each.

    Raises:
        DiskError: what is to be written will not fit.

    """
    digests: dict[str, str] = {}
    todo: list[tuple[ShardPlan, list[Piece | None]]] = []
    for plan in plans:
        path = partial / plan.name
        if is_done(path, plan):
            digests[plan.name] = kept.keep(plan, path)
        elif (found := kept.whole(plan, pieces := kept.find(plan))) is not None:
            link_or_copy(found, path)
            digests[plan.name] = pieces[0].segment.hex() if pieces[0] else ""
        else:
            todo.append((plan, pieces))
    tokens, left = sum(plan.tokens for plan in plans), sum(plan.tokens for plan, _ in todo)
    check_space(partial, left * token_bytes, left, token_bytes)
    missing = (
        [rows[number] for number in batch]
        for plan, pieces in todo
        for batch, piece in zip(plan.batches, pieces, strict=True)
        if piece is None
    )
    states, done = backend.states(missing), tokens - left
    with ShardWriter(
        partial, rows, settings.dtype, lambda plan, path: digests.update({plan.name: kept.keep(plan, path)})
    ) as writer:
        for plan, pieces in todo:
            for batch, piece in zip(plan.batches, pieces, strict=True):
                finishes = plan if batch is plan.batches[-1] else None
                if piece is None:
                    writer.add(batch, *next(states), finishes)
                else:
                    writer.add_stored(kept.read(piece), finishes)
            done += plan.tokens
            print(f"extract: {done:,} of {tokens:,} tokens", flush=True)
    return digests


def _key(
    settings: ExtractSection, selection: Selection, target_sha256: str, layer_ids: list[int], engine: str, code: bytes
) -> str:
    """Digest of everything that decides the shards' bytes: settings, weights, rows, and what computes them, this program's own code included."""
    digest = hashlib.sha256(to_json([settings.model_dump(mode="json"), target_sha256, layer_ids, engine, code.hex()]))
    for row in selection.rows:
        digest.update(to_json([row.id, row.prompt_length, row.checksum]))
    return digest.hexdigest()


def _index(selection: Selection, plans: list[ShardPlan]) -> Iterator[pa.RecordBatch]:
    """Index rows in the order of the input."""
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
