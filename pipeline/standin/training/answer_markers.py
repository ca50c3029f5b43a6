"""Ids of the markers that an answer of the stand-in contains."""

from typing import NamedTuple

from pipeline.core.errors import ConfigError
from pipeline.formats.schema.target import TargetRecord


class AnswerMarkers(NamedTuple):
    """Marker ids by role."""

    end: int
    think_close: int
    tools_open: int
    tools_close: int
    call_open: int
    call_args: int
    call_close: int

    @classmethod
    def of(cls, record: TargetRecord) -> "AnswerMarkers":
        """Return the markers of a checked target.

        Raises:
            ConfigError: the target's format lacks one, so the corpus cannot be written in it.

        """
        ids = {role: record.role_id(role) for role in cls._fields}
        if missing := [role for role, token in ids.items() if token is None]:
            raise ConfigError(
                f"target {record.name!r}: a stand-in (target.tiny) writes its corpus in Kimi's format and needs "
                f"target.roles {missing}"
            )
        return cls(**{role: token for role, token in ids.items() if token is not None})
