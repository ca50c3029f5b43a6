"""The base of every configuration section and of every small document that stages exchange."""

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict

_CREDENTIALS = re.compile(r"(://)[^/\s]*@|(://[^\s?]*\?)[^\s'\"]+")


class Section(BaseModel):
    """Frozen, closed (an unknown key is a mistake), validated; write a docstring under each field."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)


def _plain(url: str) -> str:
    if not url.startswith(("http://", "https://")) or any(letter in "@?#" or letter.isspace() for letter in url):
        raise ValueError(
            "must start with http:// or https:// and hold neither credentials nor a query: the key belongs into the environment"
        )
    parts = urlsplit(url)
    if not parts.hostname or parts.port == 0:  # both raise ValueError where the address is malformed
        raise ValueError("names no host and port, as http://127.0.0.1:8000/v1 does")
    return url.rstrip("/")


Address = Annotated[str, AfterValidator(_plain)]
"""A server's address, without a slash at its end, and without anything secret in it."""


_KEY_NAME = "api_key_env"


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(
            "must be the name of an environment variable (letters, digits and _), or null where no key is needed"
        )
    return name


Variable = Annotated[str, AfterValidator(_variable)]
"""Name of the environment variable that holds a key."""


def mistake(error: Any) -> str:
    """One of pydantic's errors in words: dotted path, what is wrong, what was found; but not what stands where a key may have been pasted."""
    where = ".".join(map(str, error["loc"])) or "document"
    if error["loc"][-1:] == (_KEY_NAME,) and error["input"]:
        return f"{where}: {error['msg']}; what was found is not shown, for it may be the key"
    said = "no such key" if error["type"] == "extra_forbidden" else error["msg"]
    return (
        f"{where}: {said}"
        if error["type"] == "missing"
        else f"{where}: {said}; found {_shortened(repr(error['input']))}"
    )


def without_credentials(text: str) -> str:
    """Blot out what stands before the @ of an address, and its query: a mistake is shown, a secret is not."""
    return _CREDENTIALS.sub(r"\1\2...", text)


def _shortened(text: str) -> str:
    text = without_credentials(text)
    return text if len(text) <= 200 else f"{text[:197]}..."
