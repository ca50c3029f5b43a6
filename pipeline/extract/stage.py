"""Accepted rows to the target's hidden states: `build/<dataset>/hidden/` and its stamp."""

import hashlib
from pathlib import Path
from typing import Any

from pipeline.artifacts import install_folder, read_json, sha256_folder, to_json, write_json
from pipeline.errors import InputError
from pipeline.extract.config import ExtractSection
from pipeline.extract.forward import can_pack, check_teacher, pack_attention, states
from pipeline.extract.plan import Row, Selection, ShardPlan, batches, bytes_per_token, select, shards
from pipeline.extract.writer import ShardWriter, check_space, close_partial, is_done, open_partial
from pipeline.models import Target, auxiliary_layers, find_source, open_model, read_config, use_threads
from pipeline.schema.hidden import INDEX, Manifest, Stamp
from pipeline.schema.tokens import SCHEMA
from pipeline.section import Section
from pipeline.shards import INDEX_NAME, MANIFEST, checksum
from pipeline.tables import read_rows, write_rows


class Config(Section):
    """Slice of the config that this stage reads."""

    extract: ExtractSection


def run(config: Config, *, accepted: Path, verdict: Path, record: Path, model: Path, hidden: Path, stamp: Path) -> None:
    """Run the target over every accepted row and store its states.

    Raises:
        InputError: rows that are not this target's.
        ConfigError: layers that this target does not have.
        DiskError: the states will not fit.

    """
    read_json(verdict)
    settings = config.extract
    use_threads(settings.threads)
    source = find_source(model)
    shape = read_config(source).get_text_config()
    vocab_size = int(shape.vocab_size)
    if vocab_size != (wanted := int(read_json(record)["vocab_size"])):
        raise InputError(f"{source.name}: its config has a vocabulary of {vocab_size}; {record} says {wanted}: weights and target are not of one model")
    layer_ids = auxiliary_layers(settings.layers, int(shape.num_hidden_layers))
    selection = select(accepted, read_rows(accepted, SCHEMA), settings, vocab_size)
    token_bytes = bytes_per_token(int(shape.hidden_size), settings.dtype)
    partial = open_partial(hidden, _key(settings, selection, source.sha256, layer_ids))
    tokens = sum(len(row.token_ids) for row in selection.rows)
    check_space(partial, tokens * token_bytes, tokens, token_bytes)
    target = open_model(model, dtype=settings.compute_dtype, device=settings.device)
    plans = _compute(target, layer_ids, selection.rows, settings, token_bytes, partial)
    write_rows(partial / INDEX_NAME, INDEX, _index(selection.rows, plans))
    write_json(partial / MANIFEST, _manifest(target, layer_ids, settings))
    close_partial(partial)
    install_folder(partial, hidden)
    write_json(stamp, _stamp(stamp.stem, selection, hidden))


def _compute(target: Target, layer_ids: list[int], rows: list[Row], settings: ExtractSection, token_bytes: int, partial: Path) -> list[ShardPlan]:
    """Fill every shard that is not there yet; return all of them."""
    if packed := can_pack(target):
        pack_attention(target)
    if rows:
        check_teacher(target, layer_ids, rows[0].token_ids, packed=packed)
    plans = shards(rows, batches(rows, settings.tokens_per_batch, padded=not packed), token_bytes, settings.shard_bytes)
    done = 0
    with ShardWriter(partial, rows, settings.dtype) as writer:
        for plan in plans:
            if not is_done(partial / plan.name, plan):
                for batch in plan.batches:
                    aux, last = states(target, layer_ids, [rows[number].token_ids for number in batch], packed=packed)
                    writer.add(batch, aux, last, plan if batch is plan.batches[-1] else None)
            done += plan.tokens
            print(f"extract: {done:,} of {sum(p.tokens for p in plans):,} tokens", flush=True)
    return plans


def _key(settings: ExtractSection, selection: Selection, target_sha256: str, layer_ids: list[int]) -> str:
    """Digest of everything that decides the shards' bytes."""
    digest = hashlib.sha256(to_json([settings.model_dump(mode="json"), target_sha256, layer_ids]))
    for row in selection.rows:
        digest.update(to_json([row.id, row.prompt_length, checksum(row.token_ids)]))
    return digest.hexdigest()


def _index(rows: list[Row], plans: list[ShardPlan]) -> list[dict[str, Any]]:
    """Index rows in the order of the input."""
    places: dict[int, tuple[str, int]] = {}
    for plan in plans:
        offset = 0
        for number in (number for batch in plan.batches for number in batch):
            places[number] = (plan.name, offset)
            offset += len(rows[number].token_ids)
    return [
        {
            "id": row.id,
            "shard": places[number][0],
            "offset": places[number][1],
            "length": len(row.token_ids),
            "prompt_length": row.prompt_length,
            "checksum": checksum(row.token_ids),
            "segments": row.segments,
        }
        for number, row in enumerate(rows)
    ]


def _manifest(target: Target, layer_ids: list[int], settings: ExtractSection) -> Manifest:
    return Manifest(
        layer_ids=layer_ids,
        layer_names=[target.norm_name if number == target.num_layers else target.layer_names[number] for number in layer_ids],
        norm_name=target.norm_name,
        num_layers=target.num_layers,
        hidden_size=target.hidden_size,
        dtype=settings.dtype,
        vocab_size=target.vocab_size,
        target_sha256=target.source.sha256,
    )


def _stamp(dataset: str, selection: Selection, hidden: Path) -> Stamp:
    rows = selection.rows
    return Stamp(
        dataset=dataset,
        rows=len(rows),
        tokens=sum(len(row.token_ids) for row in rows),
        supervised_tokens=sum(len(row.token_ids) - row.prompt_length for row in rows),
        cut=selection.cut,
        left_out=dict(sorted(selection.left_out.items())),
        sha256=sha256_folder(hidden),
    )
