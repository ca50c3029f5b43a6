"""Check of an engine's last states against the token that the engine itself writes next.

The layers between are not needed for it: the target's final norm and head turn a row's last state into logits.
"""

from collections.abc import Sequence

import torch

from pipeline.core.errors import EngineError
from pipeline.model.weights.ends import Ends
from pipeline.stages.extract.engines.engine_api import EngineReply
from pipeline.stages.extract.plan import InputRow

MARGIN = 0.05
"""Most that the engine's token may lie below the largest logit, as a share of the largest absolute logit.

The engine's choice and ours need not be the same token: two logits may tie, bfloat16 keeps 8 bits (0.4 % of a logit),
and an engine whose head is float8 (3 bits) moves a logit by about 1 % of the largest, since the errors of many products
average out. With the states of other tokens the engine's token is typically below by more than half of the largest
logit.
"""
_NORM_TOLERANCE = 0.02
"""A normed state, divided by the norm's weights, has a root mean square within this of one; others have no reason
to."""


def check_next_tokens(ends: Ends, rows: Sequence[InputRow], replies: Sequence[EngineReply], where: str) -> None:
    """Check of each row that head(norm(last state)) gives the engine's next token, within `MARGIN`.

    All rows share one product with the head: reading a large head once a row would cost more than the rest of a row's
    work.

    Raises:
        EngineError: with the row's id; training would learn from a wrong teacher.

    """
    for row, reply in zip(rows, replies, strict=True):
        if not 0 <= reply.next_id < len(ends.head):
            raise EngineError(
                f"{where}: row {row.id!r}: the server writes token {reply.next_id}; the target's vocabulary has "
                f"{len(ends.head)} ids: it serves another model"
            )
    with torch.inference_mode():
        last = torch.stack([reply.states[-1, -1] for reply in replies]).to(ends.head.dtype)
        logits = (ends.teacher_hidden(last) @ ends.head.T).float()
        chosen = logits.gather(1, torch.tensor([[reply.next_id] for reply in replies]))[:, 0]
        behind = (logits.amax(-1) - chosen) / logits.abs().amax(-1).clamp(min=1e-6)
    for row, reply, scores, share in zip(rows, replies, logits, behind.tolist(), strict=True):
        if not share <= MARGIN:
            raise EngineError(
                f"{where}: row {row.id!r}: after its {len(row.token_ids)} tokens the server writes token "
                f"{reply.next_id}, head(norm(last state)) gives {int(scores.argmax())} and puts {reply.next_id} "
                f"{share:.0%} of the largest logit below it (at most {MARGIN:.0%} is rounding): these are states of "
                "another request, of a prefill without its beginning, of other weights or another layer, or the model "
                "scales its logits; check the launch command (docs/extract-servers.md), restart the server, run again"
            )


def refuse_normed(ends: Ends, replies: Sequence[EngineReply], where: str) -> None:
    """Check that the last states were taken before the final norm.

    Raises:
        EngineError: the states of every reply look like the norm's output.

    """
    if all(_is_normed(ends, reply.states[:, -1]) for reply in replies):
        raise EngineError(
            f"{where}: the last states are normed already (their scale is that of the final norm's output); "
            "states before the final norm are needed"
        )


def _is_normed(ends: Ends, states: torch.Tensor) -> bool:
    """Return whether states [tokens, hidden] look normed.

    Divided by the norm's weights, normed states have a mean square of one at every token.
    """
    with torch.inference_mode():
        ones = torch.ones(1, states.shape[-1], dtype=ends.head.dtype, device=ends.head.device)
        scale = ends.norm(ones).float()
        usable = scale[0].abs() > scale.abs().max() * 1e-3
        size = (states.float() / scale)[:, usable].pow(2).mean(-1).sqrt()
        return bool(((size - 1).abs() < _NORM_TOLERANCE).all())
