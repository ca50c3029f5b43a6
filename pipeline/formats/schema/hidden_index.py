"""`build/<dataset>/hidden/index.parquet`: the place of each row's states.

Not in `hidden.py`, whose names the configuration imports without Parquet.
"""

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
"""Rows are in the order of accepted.parquet. checksum: SHA-256 in hex of the row's token ids as little-endian int32.
segments: as in accepted.parquet, so if the row was cut they may end after it."""
