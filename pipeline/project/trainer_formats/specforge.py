"""SpecForge's offline features: one torch file a row, and a vocabulary map.

`rows_<g>-<g+2000>/data_<i>.ckpt` hold `input_ids` and `loss_mask` [length], `aux_hidden_state` [1, length, 3 * hidden]
and `hidden_state` [1, length, hidden], both bfloat16. `hidden_state` is after the final norm, which SpecForge's trainer
does not apply.
"""

from pathlib import Path

import torch

from pipeline.core.errors import ArtifactError
from pipeline.drafter.vocabulary import choose_vocabulary
from pipeline.model.weights.ends import Ends
from pipeline.project.trainer_formats.source import ExportSource
from pipeline.project.trainer_formats.torch_files import write_torch_file
from pipeline.stages.train.data import check_shape

_ROWS_IN_FOLDER = 2000


def write_specforge(out: Path, source: ExportSource, ends: Ends, draft_vocab_size: int) -> int:
    """Write the rows and the vocabulary map to ``out``, and return the number of rows.

    Raises:
        ArtifactError: the states are not of the target ``ends``, or a row is damaged.

    """
    for states in source.opened:
        if states.manifest.target_sha256 != ends.source.sha256:
            raise ArtifactError(
                f"{states.folder}: states of target {states.manifest.target_sha256[:16]}; "
                f"--model is {ends.source.sha256[:16]}: its norm is another's"
            )
        check_shape(states.manifest, ends, ends.source.name)
    count = 0
    for row in source.rows():
        first = row.number // _ROWS_IN_FOLDER * _ROWS_IN_FOLDER
        features = {
            "input_ids": row.states.token_ids,
            "loss_mask": row.trained.long(),
            "aux_hidden_state": row.states.aux[None].bfloat16(),
            "hidden_state": ends.teacher_hidden(row.states.last.float())[None].bfloat16(),
        }
        write_torch_file(out / f"rows_{first}-{first + _ROWS_IN_FOLDER}" / f"data_{row.number}.ckpt", features)
        count += 1
    write_torch_file(out / "vocab_mapping.pt", _vocabulary_map(source.frequency, draft_vocab_size))
    return count


def _vocabulary_map(frequency: torch.Tensor, size: int) -> dict[str, torch.Tensor]:
    """Return `d2t` (offsets) and `t2d` of the ``size`` most frequent tokens, or of all if there are fewer."""
    used = choose_vocabulary(frequency, min(size, len(frequency)))
    t2d = torch.zeros(len(frequency), dtype=torch.bool)
    t2d[used] = True
    return {"d2t": used - torch.arange(len(used)), "t2d": t2d}
