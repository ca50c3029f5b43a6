"""Which of the admitted providers a request names: not one that just asked to be left alone, nor one that gave this prompt nothing twice."""

from collections.abc import Iterable
from typing import Any

import orjson

from pipeline.stages.generate.provider.policy import Admission, names, normal


class Rotation:
    """The part of a request's body after the prompt, for whoever may be asked now. Times are the caller's clock, in seconds."""

    def __init__(self, template: dict[str, Any], admission: Admission) -> None:
        self._template = template
        self._names: dict[str, set[str]] = {}
        """`only` entry to the names under which answers and errors may speak of it."""
        for endpoint in admission.admitted:
            self._names.setdefault(endpoint.tag, set()).update(names(endpoint))
        if not self._names:
            self._names = {name: {normal(name)} for name in template.get("provider", {}).get("only", [])}
        self._until: dict[str, float] = {}
        self._whole = orjson.dumps(template)
        self._parts: dict[frozenset[str], bytes] = {}

    def leaves(self, avoided: Iterable[str | None]) -> bool:
        """Whether anybody is left besides those providers; None is one whose name is not known, and so cannot be avoided."""
        providers = set(avoided)
        return None not in providers and bool(self._without(providers))

    def cool(self, provider: str | None, seconds: float, now: float) -> float:
        """Leave a provider alone for so long; give the seconds until somebody may be asked, 0 when another takes its place.

        Where it is not known which provider it was, it was the router itself, and that holds for all.
        """
        tags = self._tags_of(provider)
        if not tags:
            return seconds
        for tag in tags:
            self._until[tag] = max(self._until.get(tag, 0.0), now + seconds)
        return max(0.0, min(self._until.get(tag, 0.0) for tag in self._names) - now)

    def tail(self, avoided: Iterable[str | None], now: float) -> bytes:
        """JSON of the body after the prompt, for a request that is sent now."""
        if not avoided and not self._until:
            return self._whole
        allowed = self._without(set(avoided)) or set(self._names)
        free = {tag for tag in allowed if self._until.get(tag, 0.0) <= now} or {
            min(allowed, key=lambda tag: self._until[tag])
        }
        if len(free) == len(self._names):
            self._until.clear()
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
