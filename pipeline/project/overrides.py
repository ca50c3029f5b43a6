"""Hydra's grammar of overrides: parse them, put quotes around a value, expand a sweep into jobs."""

import itertools
import json
import re
import shlex
from collections.abc import Iterable
from typing import Literal

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.core.errors import ConfigError
from pipeline.core.sections import without_credentials

Place = Literal["params.yaml", "shell"]
"""The place in which a user writes an override; each has its own quotes around those of Hydra."""

_NOT_LITERAL_IN_DOUBLE_QUOTES = re.compile(r'[$`"!]|\\(?=[\\\n]|\Z)')
"""Characters that a shell changes between double quotes."""


def key_of(override: str) -> str:
    """Return the key that an override sets: `train.lr` for `+train.lr=1`."""
    return override.lstrip("+~").partition("=")[0]


def is_sweep(override: str) -> bool:
    """Return whether a valid override gives several values."""
    return bool(OverridesParser.create().parse_override(override).is_sweep_override())


def check_grammar(overrides: Iterable[str], place: Place) -> None:
    """Parse each override alone, because Hydra's message does not say which one it means.

    Raises:
        ConfigError: an override does not parse; the message shows it with quotes if those are all that it lacks.

    """
    parser = OverridesParser.create()
    for override in overrides:
        if not key_of(override).strip():
            raise ConfigError(f"override {override!r} sets no key: write KEY=VALUE")
        if "=" not in override and not override.startswith("~"):
            raise ConfigError(f"override {override!r} has no `=`: write KEY=VALUE, with quotes if VALUE has spaces")
        try:
            parser.parse_override(override)
        except HydraException as error:
            reason = str(error).splitlines()[0]
            hint = quotes_hint(override, place, "a value with such characters wants quotes")
            message = f"override {override!r} does not parse: {reason}{hint}"
            raise ConfigError(without_credentials(message)) from error


def quotes_hint(override: str, place: Place, advice: str) -> str:
    """Return the end of a message: the advice, and the override with quotes as a user writes it; or nothing.

    The hint is empty if quotes do not make the value a text, for example because the key is malformed.
    """
    quoted = _with_quotes(override, place)
    if quoted is None:
        return ""
    if place == "params.yaml":
        return f"; {advice}. In params.yaml: - {json.dumps(quoted, ensure_ascii=False)}"
    return f"; {advice}. In the shell: {_as_shell_word(quoted)}"


def _with_quotes(override: str, place: Place) -> str | None:
    """Return an override whose value is a quoted text; in a sweep only those of its values that need quotes."""
    key, equals, value = override.partition("=")
    if not equals:
        return None
    values = value.split(",") if place == "shell" and value[:1] not in ("[", "{") else [value]
    quoted = [item if len(values) > 1 and _parses(f"{key}={item}") else _quote(_unquoted(item)) for item in values]
    override = f"{key}={','.join(quoted)}"
    return override if _parses(override) and all(_is_text(_unquoted(item)) for item in values) else None


def _quote(text: str) -> str:
    return str(QuotedString(text, Quote.single).with_quotes())


def _unquoted(value: str) -> str:
    """Return a value without a user's own quotes around it, which may have failed for quotes within them."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _parses(override: str) -> bool:
    try:
        OverridesParser.create().parse_override(override)
    except HydraException:
        return False
    return True


def _is_text(text: str) -> bool:
    """Return whether OmegaConf takes a text as a value: `${` must open an interpolation."""
    try:
        OmegaConf.create({"value": text})
    except OmegaConfBaseException:
        return False
    return True


def _as_shell_word(text: str) -> str:
    """Return a text as one word of a POSIX shell, between double quotes where those suffice."""
    return shlex.quote(text) if _NOT_LITERAL_IN_DOUBLE_QUOTES.search(text) else f'"{text}"'


def sweep_jobs(arguments: list[str], loader: ConfigLoader) -> list[list[str]]:
    """Return the overrides of each job that Hydra's own sweeper makes: the product of all values of all keys.

    Args:
        arguments: overrides, some with several values.
        loader: lists the choices of a group, for `glob()`.

    Raises:
        ConfigError: a range without steps, which only an optimising sweeper takes.
        HydraException: an override does not parse.

    """
    overrides = OverridesParser.create(loader).parse_overrides(arguments)
    choices = {override.get_key_element(): _values(override) for override in overrides}
    return [list(job) for job in itertools.product(*choices.values())]


def _values(override: Override) -> list[str]:
    """Return one override for each value of a sweep; an override that is not a sweep as it was written."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    if not override.is_discrete_sweep():
        raise ConfigError(
            f"override {override.input_line!r}: Hydra's own sweeper tries listed values only, and an interval "
            "has none; write choice() or range(), or choose an optimising sweeper (hydra/sweeper=optuna)"
        )
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
