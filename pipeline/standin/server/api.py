"""The embedded server's HTTP interface, shaped like OpenRouter's."""

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
from pipeline.standin.server.batching import Engine, Job, Written
from pipeline.standin.server.message import logprob_entries, make_message, take_apart, text_of
from pipeline.standin.server.providers import CONTEXT, MAX_COMPLETION, MODEL, PROVIDERS, Provider
from pipeline.standin.server.request import ChatRequest, RequestError, read_request, request_digest
from pipeline.standin.server.routing import admitted, choose
from pipeline.standin.server.sampling import Rule

_EPOCH = 1_760_000_000
_SPREAD = 10_000_000
"""`created` lies this far after the epoch at most: it comes from the request, not from a clock."""


@dataclass(frozen=True, slots=True)
class Service:
    """What the endpoints need."""

    record: TargetRecord
    tokenizer: Tokenizer
    renderer: PromptRenderer
    engine: Engine


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, "application/json")


def _stop_found(service: Service, stops: list[str], ids: list[int]) -> str | None:
    """Give the stop text that the last segment holds, if any."""
    start = len(ids)
    while start and ids[start - 1] not in service.tokenizer.special_texts:
        start -= 1
    text = text_of(service.tokenizer, ids[start:]) if stops else ""
    return next((stop for stop in stops if stop in text), None)


def _job(service: Service, request: ChatRequest, provider: Provider, digest: bytes) -> Job:
    """Turn a request into work.

    Raises:
        RequestError: 400; the prompt cannot be rendered, or is too long.

    """
    try:
        prompt = service.renderer.render(request.messages, request.tools)
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
    rule = Rule(
        1.0 if request.temperature is None else request.temperature,
        1.0 if request.top_p is None else request.top_p,
        provider.coarse,
    )
    wanted = request.top_logprobs or 0 if request.logprobs and "logprobs" in provider.parameters else None
    stops = request.stops()
    end = service.record.special_tokens[service.record.roles.end]
    return Job(prompt, longest, end, rule, digest, lambda ids: _stop_found(service, stops, ids) is not None, wanted)


def _usage(record: TargetRecord, provider: Provider, job: Job, written: Written) -> dict[str, Any]:
    """Give the bill: counts in the model's tokens, cost in dollars."""
    close = record.role_id("think_close")
    billed = len(written.ids) - (written.finish == "end" and not provider.bills_end)
    prompt_cost, answer_cost = (
        len(job.prompt) * Fraction(provider.prompt_price),
        billed * Fraction(provider.completion_price),
    )
    return {
        "prompt_tokens": len(job.prompt),
        "completion_tokens": billed,
        "total_tokens": len(job.prompt) + billed,
        "completion_tokens_details": {"reasoning_tokens": written.ids.index(close) if close in written.ids else billed},
        "prompt_tokens_details": {"cached_tokens": 0},
        "cost": float(prompt_cost + answer_cost),
        "is_byok": False,
        "cost_details": {
            "upstream_inference_cost": None,
            "upstream_inference_prompt_cost": float(prompt_cost),
            "upstream_inference_completions_cost": float(answer_cost),
        },
    }


def _choice(service: Service, request: ChatRequest, provider: Provider, job: Job, written: Written) -> dict[str, Any]:
    """Give the one choice: message, why it ended, and the evidence that this provider gives."""
    with_tools = bool(request.tools) and request.tool_choice != "none"
    parts = take_apart(service.record, written.ids, with_tools=with_tools)
    stop = _stop_found(service, request.stops(), written.ids) if written.finish == "stop" else None
    message = make_message(service.tokenizer, provider, parts, stop, with_tools=with_tools)
    if request.hides_reasoning():
        message = {name: value for name, value in message.items() if not name.startswith("reasoning")}
    finish = "length" if written.finish == "length" else "tool_calls" if parts.calls else "stop"
    logprobs = None
    if job.alternatives is not None:
        logprobs = {
            "content": logprob_entries(service.tokenizer, written.ids, written.logprobs, written.likely),
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
        choice["token_ids"] = written.ids
    return choice


def _metadata(provider: Provider, left: list[Provider]) -> dict[str, Any]:
    """Say how the request was routed, for clients that ask with X-OpenRouter-Metadata."""
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


async def _complete(service: Service, body: Any, *, with_metadata: bool) -> dict[str, Any]:
    request = read_request(body)
    digest = request_digest(body)
    left = admitted(request)
    provider = choose(request, digest, left)
    job = _job(service, request, provider, digest)
    written = await asyncio.wrap_future(service.engine.submit(job))
    answer = {
        "id": f"gen-{_EPOCH + int.from_bytes(digest[8:16], 'little') % _SPREAD}-{digest[16:26].hex()}",
        "object": "chat.completion",
        "created": _EPOCH + int.from_bytes(digest[8:16], "little") % _SPREAD,
        "model": MODEL,
        "provider": provider.name,
        "choices": [_choice(service, request, provider, job, written)],
        "usage": _usage(service.record, provider, job, written),
    }
    if request.return_token_ids and "return_token_ids" in provider.parameters:
        answer["prompt_token_ids"] = job.prompt
    if with_metadata:
        answer["openrouter_metadata"] = _metadata(provider, left)
    return {**answer, "x_truth": {"output_ids": written.ids}}


def make_app(service: Service) -> Starlette:
    """Build the application: completions, the lists of models and endpoints, and the key."""

    async def complete(request: Request) -> Response:
        try:
            body = orjson.loads(await request.body())
        except orjson.JSONDecodeError as error:
            return _json(RequestError(400, f"the body is not JSON: {error}", "invalid_request").body, 400)
        try:
            answer = await _complete(
                service, body, with_metadata=request.headers.get("x-openrouter-metadata") == "enabled"
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
    """Give the model's entry in the list."""
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
