"""`build/<dataset>/hidden/index.parquet`: where each row's states lie. Apart from `hidden.py`, whose names the configuration uses and needs no Parquet for."""

import pyarrow as pa

from pipeline.core.files.tables import versioned
from pipeline.formats.schema.tokens import SCHEMA as TOKENS

INDEX = versioned(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int32(), nullable=False),
        pa.field("prompt_length", pa.int32(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        TOKENS.field("segments"),
    ],
    name="hidden-index",
    version=2,
)
"""Rows in the order of accepted.parquet. checksum: sha256 hex of the row's token ids as little-endian int32. segments: as in
accepted.parquet, so of a row that was cut they may go on after its end."""
