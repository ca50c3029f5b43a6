"""Which rows training may use: the row's status, the flags that the gate admits, and the findings of severity error."""


def codes(reason: str | None) -> list[str]:
    """Codes of a flag or a reject, without their details: ``count_mismatch: +2, truncated`` is count_mismatch and truncated."""
    return [part.split(":")[0].strip() for part in (reason or "").split(", ") if part.strip()]


def admitted(reason: str | None, admit: list[str]) -> bool:
    """Whether every reason of a flagged row is admitted; a flag without a reason never is."""
    given = [part.strip() for part in (reason or "").split(", ") if part.strip()]
    return bool(given) and all(part in admit or code in admit for part, code in zip(given, codes(reason), strict=True))


def left_out(status: str, reason: str | None, failed: str | None, admit: list[str]) -> str | None:
    """Why a row is left out, as one key to count by, or None when training may use it; ``failed`` is its first failed check."""
    if status == "reject":
        return f"reject: {', '.join(codes(reason)) or 'no reason given'}"
    if status == "flag" and not admitted(reason, admit):
        return f"flag: {', '.join(codes(reason)) or 'no reason given'}"
    if failed is not None:
        return f"check: {failed}"
    return None
