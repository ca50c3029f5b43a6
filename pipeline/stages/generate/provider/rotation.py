"""The admitted providers that a request names.

A provider that asked for a pause is left out for that time; one that gave a prompt nothing twice is left out for that
prompt.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from pipeline.stages.generate.provider.policy import Admission, names, normal


class Rotation:
    """Writes the part of a request's body after the prompt, with the providers that may be asked now.

    Times are the caller's clock, in seconds.
    """

    def __init__(self, template: dict[str, Any], admission: Admission) -> None:
        self._template = template
        self._names: dict[str, set[str]] = {}
        """Entry of `only` to the names under which answers and errors may mention it."""
        for endpoint in admission.admitted:
            self._names.setdefault(endpoint.tag, set()).update(names(endpoint))
        if not self._names:
            self._names = {name: {normal(name)} for name in template.get("provider", {}).get("only", [])}
        self._cooling_until: dict[str, float] = {}
        """Entry of `only` to the time until which it is left out."""
        self._whole = orjson.dumps(template)
        self._parts: dict[frozenset[str], bytes] = {}

    def has_others(self, avoided: Iterable[str | None]) -> bool:
        """Return whether any provider is left without those in ``avoided``.

        None in ``avoided`` is a provider of unknown name, which cannot be left out.
        """
        providers = set(avoided)
        return None not in providers and bool(self._without(providers))

    def cool(self, provider: str | None, seconds: float, now: float) -> float:
        """Leave a provider out for ``seconds``; return the seconds until any provider may be asked.

        That is 0 when another one takes its place. A refusal without a known provider came from the router itself, so
        it holds for all of them.
        """
        tags = self._tags_of(provider)
        if not tags:
            return seconds
        for tag in tags:
            self._cooling_until[tag] = max(self._cooling_until.get(tag, 0.0), now + seconds)
        return max(0.0, min(self._cooling_until.get(tag, 0.0) for tag in self._names) - now)

    def tail(self, avoided: Iterable[str | None], now: float) -> bytes:
        """Return the JSON of the body after the prompt, for a request that is sent now."""
        if not avoided and not self._cooling_until:
            return self._whole
        allowed = self._without(set(avoided)) or set(self._names)
        free = {tag for tag in allowed if self._cooling_until.get(tag, 0.0) <= now} or {
            min(allowed, key=lambda tag: self._cooling_until[tag])
        }
        if len(free) == len(self._names):
            self._cooling_until.clear()
        return self._part(frozenset(free))

    def _part(self, tags: frozenset[str]) -> bytes:
        if len(tags) == len(self._names):
            return self._whole
        if tags not in self._parts:
            self._parts[tags] = orjson.dumps(
                {**self._template, "provider": {**self._template["provider"], "only": sorted(tags)}}
            )
        return self._parts[tags]

    def _tags_of(self, provider: str | None) -> list[str]:
        return [] if provider is None else [tag for tag, known in self._names.items() if normal(provider) in known]

    def _without(self, providers: Iterable[str | None]) -> set[str]:
        return set(self._names) - {tag for provider in providers for tag in self._tags_of(provider)}
