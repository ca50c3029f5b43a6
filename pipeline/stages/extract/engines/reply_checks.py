"""Check the form of an engine's reply: ids, cache, shape, dtype, finite values."""

import torch

from pipeline.core.errors import EngineError
from pipeline.core.files.tensors import is_finite
from pipeline.stages.extract.engines.engine_api import CaptureSpec, EngineReply
from pipeline.stages.extract.plan import InputRow


def check_reply(row: InputRow, reply: EngineReply, spec: CaptureSpec, *, caching: bool | None, where: str) -> None:
    """Refuse a reply that does not have the form of this row's states.

    Args:
        row: the row that was asked for.
        reply: what came back.
        spec: the wanted states.
        caching: `ServerIdentity.caching`.
        where: the server, for messages.

    Raises:
        EngineError: with the row's id, what was found and what is needed.

    """
    at = f"{where}: row {row.id!r}"
    _check_ids(row.token_ids.tolist(), reply, at)
    _check_cache(len(row.token_ids), reply, caching, at)
    shape = [len(row.token_ids), len(spec.layer_ids), spec.hidden_size]
    if list(reply.states.shape) != shape:
        raise EngineError(
            f"{at}: states have shape {list(reply.states.shape)}; {shape} is needed "
            f"(tokens, layers {list(spec.layer_ids)}, the target's width): fewer tokens mean prefix caching or chunked "
            "prefill, other layers mean another launch command (docs/extract-servers.md)"
        )
    if reply.states.dtype != spec.dtype:
        raise EngineError(
            f"{at}: states are {reply.states.dtype}, extract.compute_dtype is {spec.dtype}: "
            "launch the server with that dtype, or change the config"
        )
    if not is_finite(reply.states):
        token, layer = (int(value) for value in (~torch.isfinite(reply.states).all(-1)).nonzero()[0])
        raise EngineError(
            f"{at}: the state of layer {spec.layer_ids[layer]} at token {token} is not finite: "
            "the server computes in too narrow a type, or wrongly"
        )


def _check_ids(sent: list[int], reply: EngineReply, at: str) -> None:
    for place, ids in reply.token_ids:
        if not isinstance(ids, list):
            raise EngineError(
                f"{at}: {place} has {str(ids)[:80]!r} instead of the {len(sent)} token ids that the engine read "
                "(docs/extract-servers.md)"
            )
        if ids != sent:
            raise EngineError(
                f"{at}: {place} {_difference(sent, ids)}: the server read other tokens than it was sent; "
                "its states are of another row"
            )


def _difference(sent: list[int], found: list[int]) -> str:
    """Describe the first difference of two lists of ids."""
    if len(sent) != len(found):
        return f"has {len(found)} token ids, {len(sent)} were sent"
    place = next(number for number, (a, b) in enumerate(zip(sent, found, strict=True)) if a != b)
    return f"has id {found[place]} at position {place}, {sent[place]} was sent"


def _check_cache(length: int, reply: EngineReply, caching: bool | None, at: str) -> None:
    if reply.cached:
        fault = f"{reply.cached} of {length} tokens came from the prefix cache"
    elif reply.cached is None and caching is None:
        fault = "the server does not report whether it caches prefixes"
    else:
        return
    raise EngineError(
        f"{at}: {fault}: cached tokens bring no states, or those of another run; "
        "launch the server as docs/extract-servers.md says"
    )
