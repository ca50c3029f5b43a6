"""The admission of rows to training, by status, by the flags that the gate admits, and by errors."""


def codes(reason: str | None) -> list[str]:
    """Return the codes of a reason, without details: those of `count_mismatch: +2, truncated` are both words."""
    return [part.split(":")[0].strip() for part in (reason or "").split(", ") if part.strip()]


def admitted(reason: str | None, admit: list[str]) -> bool:
    """Return whether the gate admits every reason of a flagged row; a flag without a reason is never admitted."""
    given = [part.strip() for part in (reason or "").split(", ") if part.strip()]
    return bool(given) and all(part in admit or code in admit for part, code in zip(given, codes(reason), strict=True))


def left_out(status: str, reason: str | None, failed: str | None, admit: list[str]) -> str | None:
    """Return why a row is left out, as a key to count by, or None where training may use it.

    ``failed`` is the first check that found an error in the row, or None.
    """
    if status == "reject":
        return f"reject: {', '.join(codes(reason)) or 'no reason given'}"
    if status == "flag" and not admitted(reason, admit):
        return f"flag: {', '.join(codes(reason)) or 'no reason given'}"
    if failed is not None:
        return f"check: {failed}"
    return None
