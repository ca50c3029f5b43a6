"""The base of every configuration section and of every small document that stages exchange."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen, closed (an unknown key is a mistake), validated; write a docstring under each field."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False, use_attribute_docstrings=True)
