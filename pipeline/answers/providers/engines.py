"""Kinds of servers that strip white space by default, known by the fields of their bodies."""

from typing import Any

_VLLM_FIELDS = ("prompt_logprobs", "kv_transfer_params")
"""Fields that vLLM writes into every body, null or not."""

_VLLM_SEAMS = ("reasoning_end",)
"""Seams that the reasoning parsers of vLLM trim (measured with 0.32: `.` for `.\n`)."""


def seams_trimmed_by_default(body: Any) -> tuple[str, ...]:
    """Return the seams that the server of a body strips unless it is told otherwise; none for an unknown server."""
    if not isinstance(body, dict):
        return ()
    named = any(
        isinstance(value := body.get(field), str) and "vllm" in value.casefold()
        for field in ("provider", "system_fingerprint")
    )
    return _VLLM_SEAMS if named or any(name in body for name in _VLLM_FIELDS) else ()
