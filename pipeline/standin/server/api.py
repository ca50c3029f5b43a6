"""The embedded server's HTTP interface, in OpenRouter's form."""

import asyncio
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipeline.core.errors import InputError
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.rendering import PromptRenderer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.standin.server.batch_engine import BatchEngine, DecodingJob, SampledSequence
from pipeline.standin.server.chat_message import logprob_entries, make_message, take_apart, text_of
from pipeline.standin.server.chat_request import ChatRequest, RequestError, read_request, request_digest
from pipeline.standin.server.embedded_providers import CONTEXT, MAX_COMPLETION, MODEL, PROVIDERS, EmbeddedProvider
from pipeline.standin.server.routing import admitted, choose
from pipeline.standin.server.sampling import SamplingParameters

_EPOCH = 1_760_000_000
_SPREAD = 10_000_000
"""`created` is at most this many seconds after the epoch; it comes from the request's digest, not from a clock."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that the endpoints serve."""

    record: TargetRecord
    tokenizer: Tokenizer
    renderer: PromptRenderer
    engine: BatchEngine


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, "application/json")


def _stop_found(served: ServedModel, stops: list[str], ids: list[int]) -> str | None:
    """Return the stop text that the last segment of ordinary tokens holds, or None."""
    start = len(ids)
    while start and ids[start - 1] not in served.tokenizer.special_texts:
        start -= 1
    text = text_of(served.tokenizer, ids[start:]) if stops else ""
    return next((stop for stop in stops if stop in text), None)


def _job(served: ServedModel, request: ChatRequest, provider: EmbeddedProvider, digest: bytes) -> DecodingJob:
    """Return the decoding job of a request.

    Raises:
        RequestError: 400; the prompt cannot be rendered, or is too long.

    """
    try:
        prompt = served.renderer.render(request.messages, request.tools)
    except InputError as error:
        raise RequestError(400, str(error), "invalid_prompt") from error
    longest = (
        request.longest()
        if request.max_completion_tokens or request.max_tokens
        else max(1, min(MAX_COMPLETION, CONTEXT - len(prompt)))
    )
    if len(prompt) + longest > CONTEXT:
        detail = f"{len(prompt)} prompt tokens and max_tokens {longest} are more than the context of {CONTEXT}"
        raise RequestError(
            400, f"This endpoint's maximum context length is exceeded: {detail}", "context_length_exceeded"
        )
    sampling = SamplingParameters(
        1.0 if request.temperature is None else request.temperature,
        1.0 if request.top_p is None else request.top_p,
        provider.coarse,
    )
    wanted = request.top_logprobs or 0 if request.logprobs and "logprobs" in provider.parameters else None
    stops = request.stops()
    end = served.record.special_tokens[served.record.roles.end]
    return DecodingJob(
        prompt, longest, end, sampling, digest, lambda ids: _stop_found(served, stops, ids) is not None, wanted
    )


def _usage(
    record: TargetRecord, provider: EmbeddedProvider, job: DecodingJob, sampled: SampledSequence
) -> dict[str, Any]:
    """Return the bill: counts in the model's tokens, cost in dollars."""
    close = record.role_id("think_close")
    billed = len(sampled.ids) - (sampled.finish == "end" and not provider.bills_end)
    prompt_cost = len(job.prompt) * Fraction(provider.prompt_price)
    answer_cost = billed * Fraction(provider.completion_price)
    return {
        "prompt_tokens": len(job.prompt),
        "completion_tokens": billed,
        "total_tokens": len(job.prompt) + billed,
        "completion_tokens_details": {"reasoning_tokens": sampled.ids.index(close) if close in sampled.ids else billed},
        "prompt_tokens_details": {"cached_tokens": 0},
        "cost": float(prompt_cost + answer_cost),
        "is_byok": False,
        "cost_details": {
            "upstream_inference_cost": None,
            "upstream_inference_prompt_cost": float(prompt_cost),
            "upstream_inference_completions_cost": float(answer_cost),
        },
    }


def _choice(
    served: ServedModel, request: ChatRequest, provider: EmbeddedProvider, job: DecodingJob, sampled: SampledSequence
) -> dict[str, Any]:
    """Return the one choice: message, finish reason, and the evidence that this provider gives."""
    with_tools = bool(request.tools) and request.tool_choice != "none"
    parts = take_apart(served.record, sampled.ids, with_tools=with_tools)
    stop = _stop_found(served, request.stops(), sampled.ids) if sampled.finish == "stop" else None
    message = make_message(served.tokenizer, provider, parts, stop, with_tools=with_tools)
    if request.hides_reasoning():
        message = {name: value for name, value in message.items() if not name.startswith("reasoning")}
    finish = "length" if sampled.finish == "length" else "tool_calls" if parts.calls else "stop"
    logprobs = None
    if job.alternatives is not None:
        logprobs = {
            "content": logprob_entries(served.tokenizer, sampled.ids, sampled.logprobs, sampled.likely),
            "refusal": None,
        }
    choice = {
        "index": 0,
        "finish_reason": finish,
        "native_finish_reason": finish,
        "logprobs": logprobs,
        "message": message,
    }
    if request.return_token_ids and "return_token_ids" in provider.parameters:
        choice["token_ids"] = sampled.ids
    return choice


def _metadata(provider: EmbeddedProvider, left: list[EmbeddedProvider]) -> dict[str, Any]:
    """Return how the request was routed, for clients that send X-OpenRouter-Metadata."""
    available = [{"provider": each.name, "model": MODEL, "selected": each is provider} for each in left]
    return {
        "requested": MODEL,
        "strategy": "direct",
        "region": None,
        "summary": f"{provider.name} of {len(left)}",
        "attempt": 1,
        "is_byok": False,
        "endpoints": {"total": len(PROVIDERS), "available": available},
        "attempts": [{"provider": provider.name, "model": MODEL, "status": 200}],
    }


async def _complete(served: ServedModel, body: Any, *, with_metadata: bool) -> dict[str, Any]:
    request = read_request(body)
    digest = request_digest(body)
    left = admitted(request)
    provider = choose(request, digest, left)
    job = _job(served, request, provider, digest)
    sampled = await asyncio.wrap_future(served.engine.submit(job))
    answer = {
        "id": f"gen-{_EPOCH + int.from_bytes(digest[8:16], 'little') % _SPREAD}-{digest[16:26].hex()}",
        "object": "chat.completion",
        "created": _EPOCH + int.from_bytes(digest[8:16], "little") % _SPREAD,
        "model": MODEL,
        "provider": provider.name,
        "choices": [_choice(served, request, provider, job, sampled)],
        "usage": _usage(served.record, provider, job, sampled),
    }
    if request.return_token_ids and "return_token_ids" in provider.parameters:
        answer["prompt_token_ids"] = job.prompt
    if with_metadata:
        answer["openrouter_metadata"] = _metadata(provider, left)
    return {**answer, "x_truth": {"output_ids": sampled.ids}}


def make_app(served: ServedModel) -> Starlette:
    """Return the application: completions, the lists of models and endpoints, and the key."""

    async def complete(request: Request) -> Response:
        try:
            body = orjson.loads(await request.body())
        except orjson.JSONDecodeError as error:
            return _json(RequestError(400, f"the body is not JSON: {error}", "invalid_request").body, 400)
        try:
            answer = await _complete(
                served, body, with_metadata=request.headers.get("x-openrouter-metadata") == "enabled"
            )
        except RequestError as error:
            return _json(error.body, error.status)
        return _json(answer, headers={"X-Generation-Id": answer["id"]})

    async def models(_: Request) -> Response:
        return _json({"data": [_model()], "total_count": 1, "links": {"next": None}})

    async def endpoints(request: Request) -> Response:
        slug = f"{request.path_params['author']}/{request.path_params['slug']}"
        if slug != MODEL:
            return _json(RequestError(404, f"no model {slug}; this server has {MODEL}", "not_found").body, 404)
        return _json({"data": {**_model(), "endpoints": [provider.endpoint() for provider in PROVIDERS]}})

    async def key(_: Request) -> Response:
        return _json(
            {"data": {"label": "embedded", "limit": None, "limit_remaining": None, "usage": 0, "is_free_tier": False}}
        )

    return Starlette(
        routes=[
            Route("/api/v1/chat/completions", complete, methods=["POST"]),
            Route("/api/v1/models", models),
            Route("/api/v1/models/{author}/{slug}/endpoints", endpoints),
            Route("/api/v1/key", key),
        ]
    )


def _model() -> dict[str, Any]:
    """Return the model's entry in the list of models."""
    cheapest = min(PROVIDERS, key=lambda provider: Fraction(provider.completion_price))
    return {
        "id": MODEL,
        "canonical_slug": MODEL,
        "name": "Aerie: tiny Kimi",
        "created": _EPOCH,
        "description": "A stand-in target that the build trained itself.",
        "context_length": CONTEXT,
        "architecture": {
            "input_modalities": ["text"],
            "output_modalities": ["text"],
            "tokenizer": "Kimi-K2.5",
            "instruct_type": None,
        },
        "pricing": {"prompt": cheapest.prompt_price, "completion": cheapest.completion_price},
        "top_provider": {"context_length": CONTEXT, "max_completion_tokens": MAX_COMPLETION, "is_moderated": False},
        "supported_parameters": sorted(set().union(*(provider.parameters for provider in PROVIDERS))),
    }
