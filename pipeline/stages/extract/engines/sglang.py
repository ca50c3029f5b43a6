"""SGLang: `/generate` with `return_hidden_states`, on a server that captures auxiliary layers.

States come as JSON numbers in `meta_info.hidden_states`: one list for the prompt, [tokens, layers * hidden]. SGLang
counts layers by their output: one less than our ids. It returns either auxiliary states or the normed last state, so
the last state must be captured as one more layer. docs/extract-servers.md names the sources.
"""

import uuid
from typing import Any

import numpy as np
import orjson
import torch

from pipeline.core.errors import EngineError
from pipeline.stages.extract.config import EngineSection
from pipeline.stages.extract.engines.engine_api import (
    CaptureSpec,
    EngineReply,
    Get,
    ServerIdentity,
    check_launched_layers,
    whole_number,
    whole_number_or_none,
)
from pipeline.stages.extract.plan import InputRow


class Sglang:
    """Sends token ids to SGLang's own interface."""

    def __init__(self, settings: EngineSection, spec: CaptureSpec) -> None:
        self._settings, self._spec = settings, spec

    async def identify(self, get: Get) -> ServerIdentity:
        """Read version and model, and the settings that decide which states come back."""
        url = self._settings.url
        try:
            info = orjson.loads(await get("/server_info") or await get("/get_server_info") or b"")
            model = orjson.loads(await get("/model_info") or await get("/get_model_info") or b"")
            names = (str(model["model_path"]), str(model.get("served_model_name") or model["model_path"]))
            engine = f"sglang {info['version']}"
            cards = orjson.loads(await get("/v1/models") or b'{"data": [{}]}')["data"]
            most = cards[0].get("max_model_len") if cards else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{url}: /server_info and /model_info are not SGLang's ({error!r}): is this an SGLang server?"
            ) from error
        if not info.get("disable_radix_cache"):
            raise EngineError(
                f"{url}: prefix caching is on: launch SGLang with --disable-radix-cache (docs/extract-servers.md)"
            )
        if not info.get("enable_return_aux_hidden_states"):
            raise EngineError(
                f"{url}: {engine} was launched without --enable-return-aux-hidden-states, so it gives no auxiliary "
                "layers (docs/extract-servers.md)"
            )
        reported = info.get("return_aux_hidden_state_layer_ids") or ["none named"]
        check_launched_layers(self._spec, reported, [number - 1 for number in self._spec.layer_ids], url)
        most_tokens = whole_number_or_none(most, "max_model_len", url)
        return ServerIdentity(engine, names, most_tokens, caching=False, confirms_layers=True)

    def request(self, row: InputRow) -> tuple[str, dict[str, Any]]:
        """Ask with token ids, for one greedy token.

        ``extra_key`` gives the row its own part of the prefix cache, if there is a cache.
        """
        body = {
            "input_ids": row.token_ids.tolist(),
            "sampling_params": {"temperature": 0, "max_new_tokens": 1, "repetition_penalty": 1.0},
            "return_hidden_states": True,
            "return_prompt_token_ids": True,
            "extra_key": uuid.uuid4().hex,
        }
        return "/generate", body

    async def read_reply(self, row: InputRow, document: Any) -> EngineReply:
        """Read the states from JSON, where any type of at most 32 bits is exact.

        Rounding tells which type they were computed in.
        """
        at = f"{self._settings.url}: row {row.id!r}"
        try:
            prompt_ids, next_id, about = document["prompt_token_ids"], document["output_ids"][0], document["meta_info"]
            prefill, cached = about["hidden_states"][0], about.get("cached_tokens")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{at}: the reply lacks {error}: it needs prompt_token_ids, output_ids and meta_info.hidden_states: "
                "this SGLang is too old, or was launched without --return-hidden-states-mode full "
                "(docs/extract-servers.md)"
            ) from error
        next_id = whole_number(next_id, "output_ids[0]", at)
        cached = whole_number_or_none(cached, "meta_info.cached_tokens", at)
        try:
            numbers = torch.from_numpy(np.array(prefill, dtype=np.float32))
        except (ValueError, TypeError) as error:
            raise EngineError(f"{at}: meta_info.hidden_states is not a table of numbers: {error}") from error
        if numbers.dim() == 2 and numbers.shape[1] % self._spec.hidden_size == 0:
            numbers = numbers.unflatten(1, (-1, self._spec.hidden_size))
        return EngineReply((("the reply", prompt_ids),), _as_computed(numbers, self._spec.dtype), next_id, cached)


def _as_computed(numbers: torch.Tensor, expected: torch.dtype) -> torch.Tensor:
    """Return float32 numbers in the type that they were computed in.

    It is the narrow type that holds all of them, else float32. If both narrow types do, ``expected`` decides.
    """
    known = torch.nan_to_num(numbers)
    narrow = [dtype for dtype in (torch.bfloat16, torch.float16) if torch.equal(known.to(dtype).float(), known)]
    if expected in narrow:
        return numbers.to(expected)
    return numbers.to(narrow[0]) if narrow else numbers
