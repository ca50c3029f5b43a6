"""Whether the last states of an engine are what the target's head reads, judged without the layers between: by the token that the engine itself writes next."""

import torch

from pipeline.core.errors import EngineError
from pipeline.model.weights.ends import Ends

_MOST_BEHIND = 0.05
"""How far the engine's own token may lie behind our best, as a share of the largest logit: rounding of narrow types moves near ties."""
_UNIT = 0.02
"""How near one a normed state's scale is: states before the norm have no reason to be."""


def check_last(ends: Ends, pairs: list[tuple[torch.Tensor, int]], where: str) -> None:
    """Check that head(norm(state)) gives the engine's next token, and that the states were not normed already.

    Args:
        ends: the target's final norm and head.
        pairs: last states [tokens, hidden] of a row, and the token that the engine wrote after it.
        where: the server, for messages.

    Raises:
        EngineError: training would learn from a wrong teacher.

    """
    with torch.inference_mode():
        if all(_is_normed(ends, states) for states, _ in pairs):
            raise EngineError(
                f"{where}: the last states are normed already (their scale is that of the final norm's output); states before the final norm are needed"
            )
        for states, token in pairs:
            logits = (ends.teacher_hidden(states[-1:].to(ends.head.dtype)) @ ends.head.T)[0].float()
            behind = ((logits.max() - logits[token]) / logits.abs().max().clamp(min=1e-6)).item()
            if not behind <= _MOST_BEHIND:
                raise EngineError(
                    f"{where}: after {len(states)} tokens the server writes token {token}, head(norm(state)) says {int(logits.argmax())} and puts {token} {behind:.0%} "
                    f"of the largest logit behind it (at most {_MOST_BEHIND:.0%} is rounding): other weights, another layer, or a model that scales its logits"
                )


def _is_normed(ends: Ends, states: torch.Tensor) -> bool:
    """Tell whether states look like the final norm's output: divided by the norm's weights they have a mean square of one at every token."""
    ones = torch.ones(1, states.shape[-1], dtype=ends.head.dtype, device=ends.head.device)
    scale = ends.norm(ones).float()
    usable = scale[0].abs() > scale.abs().max() * 1e-3
    size = (states.float() / scale)[:, usable].pow(2).mean(-1).sqrt()
    return bool(((size - 1).abs() < _UNIT).all())
