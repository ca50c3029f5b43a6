"""Speculators' offline data: an Arrow table, one safetensors file a row, and token counts.

The table is as `datasets` saves it, with `input_ids`, `loss_mask` and `seq_len`. `hidden_states/hs_<i>.safetensors`
hold `token_ids` [length] and `hidden_states` [length, 4, hidden] in bfloat16: low, mid and high layer, and the last
state before the final norm.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from pipeline.core.files.atomic import writing
from pipeline.core.files.json_file import write_json
from pipeline.core.files.tensors import save_tensors
from pipeline.project.trainer_formats.source import ExportSource
from pipeline.project.trainer_formats.torch_files import write_torch_file

_TABLE = "data-00000-of-00001.arrow"
_INT64 = {"dtype": "int64", "_type": "Value"}
_FEATURES: dict[str, Any] = {
    "input_ids": {"feature": _INT64, "_type": "List"},
    "loss_mask": {"feature": _INT64, "_type": "List"},
    "seq_len": _INT64,
}
_SCHEMA = pa.schema([("input_ids", pa.list_(pa.int64())), ("loss_mask", pa.list_(pa.int64())), ("seq_len", pa.int64())])


def write_speculators(out: Path, source: ExportSource) -> int:
    """Write the rows, the table and the token counts to ``out``, and return the number of rows.

    Raises:
        ArtifactError: a row is damaged.

    """
    columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA.names}
    for row in source.rows():
        length = len(row.states.token_ids)
        aux, last = row.states.aux.reshape(length, 3, -1), row.states.last[:, None]
        states = torch.cat([aux, last.to(aux.dtype)], 1).bfloat16()
        save_tensors(
            out / "hidden_states" / f"hs_{row.number}.safetensors",
            {"token_ids": row.states.token_ids, "hidden_states": states},
        )
        columns["input_ids"].append(row.states.token_ids.tolist())
        columns["loss_mask"].append(row.trained.long().tolist())
        columns["seq_len"].append(length)
    _write_dataset(out, pa.table(columns, schema=_SCHEMA))
    counts = {token: count for token, count in enumerate(source.frequency.tolist()) if count}
    write_torch_file(out / "token_freq.pt", counts)
    return len(columns["seq_len"])


def _write_dataset(out: Path, table: pa.Table) -> None:
    """Write the files of `Dataset.set_format("torch").save_to_disk`.

    Without the format, ids would come back as lists.
    """
    with writing(out / _TABLE) as file, pa.ipc.new_stream(file, _SCHEMA) as writer:
        writer.write(table)
    state = {
        "_data_files": [{"filename": _TABLE}],
        "_fingerprint": "aerie",
        "_format_columns": list(_FEATURES),
        "_format_kwargs": {},
        "_format_type": "torch",
        "_output_all_columns": False,
        "_split": None,
    }
    write_json(out / "state.json", state)
    write_json(
        out / "dataset_info.json",
        {"citation": "", "description": "", "features": _FEATURES, "homepage": "", "license": ""},
    )
