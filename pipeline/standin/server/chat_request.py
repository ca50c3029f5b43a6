"""A chat-completion request, parsed and checked; a malformed one is a 400 whose message names the mistake."""

import hashlib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline.core.files.json_file import to_json
from pipeline.standin.server.embedded_providers import MAX_COMPLETION, MODEL


class RequestError(Exception):
    """The request is refused; ``body`` is the response's body."""

    def __init__(self, status: int, message: str, error_type: str, availability: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        error = {"code": status, "message": message, "metadata": {"error_type": error_type}}
        self.body = {"error": {**error, "availability": availability} if availability else error}


class _Price(BaseModel):
    """Dollars per million tokens."""

    model_config = ConfigDict(extra="ignore")
    prompt: float | None = None
    completion: float | None = None


class Routing(BaseModel):
    """Rules for the providers that may answer."""

    model_config = ConfigDict(extra="forbid")
    order: list[str] | None = None
    only: list[str] | None = None
    ignore: list[str] | None = None
    allow_fallbacks: bool | None = True
    require_parameters: bool | None = False
    quantizations: list[str] | None = None
    max_price: _Price | None = None
    data_collection: Literal["allow", "deny"] | None = None
    sort: Any = None
    zdr: bool | None = None
    enforce_distillable_text: bool | None = None


class ChatRequest(BaseModel):
    """The fields that this server acts on; the rest of the body only changes its digest."""

    model_config = ConfigDict(extra="allow", strict=True)
    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    stream: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    return_token_ids: bool | None = None
    tool_choice: Any = None
    reasoning: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    provider: Routing = Field(default_factory=Routing)

    @field_validator("provider", mode="before")
    @classmethod
    def _null_is_default(cls, value: Any) -> Any:
        return {} if value is None else value

    @model_validator(mode="after")
    def _possible(self) -> "ChatRequest":
        if self.n not in (None, 1):
            raise ValueError(f"n: only 1 is supported, found {self.n}")
        if self.stream:
            raise ValueError("stream: streaming is not supported by this server")
        if isinstance(self.stop, list) and len(self.stop) > 4:
            raise ValueError(f"stop: at most 4 strings, found {len(self.stop)}")
        if "" in self.stops():
            raise ValueError("stop: an empty string would stop before the first token")
        return self

    def longest(self) -> int:
        """Return the most tokens that the answer may have."""
        return self.max_completion_tokens or self.max_tokens or MAX_COMPLETION

    def stops(self) -> list[str]:
        """Return the texts that end the answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def hides_reasoning(self) -> bool:
        """Return whether the client asks for a body without reasoning."""
        return self.include_reasoning is False or bool((self.reasoning or {}).get("exclude"))

    def parameters(self) -> set[str]:
        """Return the names of the parameters that `require_parameters` demands of a provider."""
        given = {name for name, value in self.model_dump(exclude_unset=True).items() if value is not None}
        return given - {
            "model",
            "messages",
            "provider",
            "stream",
            "n",
            "usage",
            "user",
            "metadata",
            "session_id",
            "models",
        }


def read_request(body: Any) -> ChatRequest:
    """Parse and check a request's body.

    Raises:
        RequestError: 400; the message names the first mistake.

    """
    if not isinstance(body, dict):
        raise RequestError(400, f"the body must be a JSON object, found {type(body).__name__}", "invalid_request")
    try:
        request = ChatRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RequestError(400, f"{where}: {first['msg']}" if where else first["msg"], "invalid_request") from error
    if request.model != MODEL:
        raise RequestError(400, f"{request.model} is not a valid model ID; this server has {MODEL}", "model_not_found")
    if request.longest() > MAX_COMPLETION:
        raise RequestError(
            400, f"max_tokens is {request.longest()}; at most {MAX_COMPLETION} are possible", "max_tokens_exceeded"
        )
    return request


def request_digest(body: Any) -> bytes:
    """Return the 32 bytes that decide everything random about an answer; the order of the body's keys is ignored."""
    return hashlib.sha256(to_json(body)).digest()
