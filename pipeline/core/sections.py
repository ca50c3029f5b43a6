"""Sections: the validated parts of the configuration, and the base of the small documents that stages exchange."""

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from pipeline.core.errors import ConfigError

_CREDENTIALS = re.compile(r"(://)[^/\s]*@|(://[^\s?]*\?)[^\s'\"]+")


class Section(BaseModel):
    """Frozen and validated; an unknown key is a mistake. Each field has a docstring below it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)


def _plain(url: str) -> str:
    if not url.startswith(("http://", "https://")) or any(letter in "@?#" or letter.isspace() for letter in url):
        raise ValueError(
            "must start with http:// or https:// and hold neither credentials nor a query: "
            "the key belongs into the environment"
        )
    parts = urlsplit(url)
    if not parts.hostname or parts.port == 0:  # both raise ValueError where the address is malformed
        raise ValueError("names no host and port, as http://127.0.0.1:8000/v1 does")
    return url.rstrip("/")


Address = Annotated[str, AfterValidator(_plain)]
"""URL of a server, without a slash at its end and without credentials."""


_KEY_NAME = "api_key_env"


def pick(config: Any, path: str) -> Any:
    """Return the value at a dotted path of build/config.json.

    Raises:
        ConfigError: the config has no such path.

    """
    value = config
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            raise ConfigError(
                f"build/config.json has no {path!r} (looked for {part!r}); run `python -m pipeline compose`"
            )
        value = value[part]
    return value


def section_of(model: type[Section], values: dict[str, Any]) -> Section:
    """Validate a stage's slice of the config.

    Raises:
        ConfigError: the values do not fit the model; the message lists every mistake.

    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        mistakes = "\n  ".join(map(mistake, error.errors()))
        raise ConfigError(
            f"build/config.json does not fit this code; run `python -m pipeline compose`:\n  {mistakes}"
        ) from error


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(
            "must be the name of an environment variable (letters, digits and _), or null where no key is needed"
        )
    return name


Variable = Annotated[str, AfterValidator(_variable)]
"""Name of the environment variable that holds an API key."""


def mistake(error: Any) -> str:
    """Describe one of pydantic's errors: dotted path, message, value found.

    The value of `api_key_env` is not shown: someone may have put the key itself there.
    """
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
    """Replace the user information and the query of every URL in a text by dots, so that a message shows no secret."""
    return _CREDENTIALS.sub(r"\1\2...", text)


def _shortened(text: str) -> str:
    text = without_credentials(text)
    return text if len(text) <= 200 else f"{text[:197]}..."
