"""`build/<dataset>/audit/sketch.parquet`: a few bytes of each row, to compare it with other rows."""

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
"""prompt, completion: hashes of their ids. signature: MinHash of the answer's n-grams (uint16, little-endian). Null if
there is nothing to compare."""
