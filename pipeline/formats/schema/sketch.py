"""`build/<dataset>/audit/sketch.parquet`: a few bytes of each row, by which it is compared with the rows of its own and of other datasets."""

import pyarrow as pa

from pipeline.core.files.tables import versioned

SCHEMA = versioned(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("prompt", pa.uint64()),
        pa.field("completion", pa.uint64()),
        pa.field("signature", pa.binary()),
    ],
    "sketch",
    1,
)
"""Hashes of the prompt's and the answer's ids, and the MinHash signature of the answer's n-grams (uint16, little-endian); null where there is nothing to compare."""
