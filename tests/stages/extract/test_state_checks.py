"""Servers that return wrong states are refused with the row's id; honest servers never are."""

import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.core.errors import EngineError
from pipeline.core.files.digests import sha256_file
from pipeline.core.files.tensors import load_tensors, save_tensors
from pipeline.formats.hidden_states import HiddenStates
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.weights.ends import open_ends
from pipeline.model.weights.target import open_shape
from pipeline.stages.extract.config import EngineSection
from pipeline.stages.extract.engines import client
from pipeline.stages.extract.engines.engine_api import EngineReply
from pipeline.stages.extract.engines.head_check import MARGIN, check_next_tokens
from pipeline.stages.extract.engines.state_checks import StateChecks
from pipeline.stages.extract.plan import InputRow
from tests.polling import TIMEOUT_S
from tests.stages.extract.engine_server import PROBES, EngineServer
from tests.tiny import LAYERS, VOCAB, WIDTH, Build, random_rows, token_row

pytestmark = pytest.mark.slow

KINDS = ["vllm", "sglang"]
TWENTIES = random_rows([(f"row-{number}", 5, 15) for number in range(6)])
THIRTY_SIXES = random_rows([(f"row-{number}", 6, 30) for number in range(6)])
LAST = PROBES + 6
"""Number of the last request for six rows."""


@pytest.fixture(scope="module", autouse=True)
def _shapes_are_made_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "open_shape", cache(open_shape))
        patch.setattr(client, "open_ends", cache(open_ends))
        yield


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, kimi: TargetRecord) -> Build:
    return Build(tmp_path_factory.mktemp("build"), kimi)


def extract(build: Build, server: EngineServer, rows: list[dict[str, Any]], name: str, **engine: Any) -> Path:
    """Extract through the server, one request after the other."""
    settings: dict[str, Any] = {"concurrency": 1, "attempts": 1, "timeout": TIMEOUT_S, **engine}
    section = EngineSection(url=server.url, folder=str(server.folder), **settings)
    return build.extract(rows, name, section, backend=server.kind, tokens_per_batch=1)


def serve(build: Build, kind: str, folder: Path, **fields: Any) -> EngineServer:
    return EngineServer(kind, build.model, [2, 4, 5, LAYERS], folder, **fields)


def previous_of_equal_length() -> Callable[[int, list[int], torch.Tensor], torch.Tensor]:
    """From the fifth request on, the states of the request before, if it had as many tokens."""
    before: list[torch.Tensor] = []

    def states(number: int, ids: list[int], own: torch.Tensor) -> torch.Tensor:
        before.append(own)
        stale = number > PROBES and len(before[-2]) == len(own)
        return before[-2] if stale else own

    return states


def last_zero(count: int) -> Callable[[int, list[int], torch.Tensor], torch.Tensor]:
    """In the last request, the last ``count`` tokens zero: a file whose size was set before all of it was written."""

    def states(number: int, ids: list[int], own: torch.Tensor) -> torch.Tensor:
        return torch.cat([own[:-count], torch.zeros_like(own[-count:])]) if number == LAST else own

    return states


def repeated_token(number: int, ids: list[int], own: torch.Tensor) -> torch.Tensor:
    """In the last request, the state of token 7 again at token 12, in one layer."""
    own = own.clone()
    if number == LAST:
        own[12, 1] = own[7, 1]
    return own


def of_other_tokens(server: EngineServer) -> Callable[[int, list[int], torch.Tensor], torch.Tensor]:
    """In the last request, the states of tokens that nobody asked for."""
    return lambda number, ids, own: server.compute(ids[::-1])[0] if number == LAST else own


def second_half_alone(server: EngineServer) -> Callable[[int, list[int], torch.Tensor], torch.Tensor]:
    """In the last request, the second half computed without the first: a prefill chunk that lost the chunk before."""

    def states(number: int, ids: list[int], own: torch.Tensor) -> torch.Tensor:
        half = len(ids) // 2
        return torch.cat([own[:half], server.compute(ids[half:])[0]]) if number == LAST else own

    return states


FAULTS: dict[str, tuple[Any, list[dict[str, Any]], str]] = {
    "the request before": (
        lambda server: previous_of_equal_length(),
        TWENTIES,
        r"row 'row-1': has the states of row 'row-0.*', whose tokens are others: .* run again",
    ),
    "another request": (
        of_other_tokens,
        TWENTIES,
        r"row 'row-5': after its 20 tokens the server writes token \d+, .* states of another request, .* run again",
    ),
    "5 of 20 zero": (
        lambda server: last_zero(5),
        TWENTIES,
        r"row 'row-5': the state of layer 2 is zero at 5 of 20 tokens, first at token 15: the file was read before .* "
        r"run",
    ),
    "9 of 36 zero": (
        lambda server: last_zero(9),
        THIRTY_SIXES,
        r"row 'row-5': the state of layer 2 is zero at 9 of 36 tokens, first at token 27: the file was read before .* "
        r"run",
    ),
    "a chunk without the first": (
        second_half_alone,
        TWENTIES,
        r"row 'row-5': after its 20 tokens .* of a prefill without its beginning, .* run again",
    ),
    "a repeated token": (
        lambda server: repeated_token,
        TWENTIES,
        r"row 'row-5': tokens 7 and 12 are \d+ and \d+, and have the same state of layer 4: .* run again",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_with_wrong_states_is_refused_by_its_id_with_what_to_do(
    build: Build, tmp_path: Path, kind: str, fault: str
) -> None:
    make, rows, message = FAULTS[fault]
    with serve(build, kind, tmp_path) as server:
        server.replace_states = make(server)
        with pytest.raises(EngineError, match=message):
            extract(build, server, rows, tmp_path.name)
    assert not build.hidden(tmp_path.name).exists()


def whole_bytes(path: Path, tensors: dict[str, torch.Tensor]) -> bytes:
    spare = path.with_suffix(".whole")
    save_tensors(spare, tensors)
    data = spare.read_bytes()
    spare.unlink()
    return data


def grows(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write the file in small pieces, without a lock."""
    data = whole_bytes(path, tensors)
    with path.open("wb", buffering=0) as file:
        for start in range(0, len(data), 4000):
            file.write(data[start : start + 4000])
            time.sleep(0.005)


def stops_growing(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    data = whole_bytes(path, tensors)
    path.write_bytes(data[: len(data) // 2])


def size_first(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Give the file its size, and write all but its last quarter, as over a shared file system."""
    data = whole_bytes(path, tensors)
    spare = path.with_suffix(".spare")
    with spare.open("wb") as file:
        file.write(data[: len(data) * 3 // 4])
        file.truncate(len(data))
    spare.rename(path)


def test_a_file_that_grows_is_read_when_it_is_whole(build: Build, tmp_path: Path) -> None:
    local = build.extract(TWENTIES, f"{tmp_path.name}-local", tokens_per_batch=1)
    with serve(build, "vllm", tmp_path, write_file=grows) as server:
        found = extract(build, server, TWENTIES, tmp_path.name)
    shard = "shard-00000.safetensors"
    assert sha256_file(found / shard) == sha256_file(local / shard)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            stops_growing,
            r"row 'row-0 .*': no whole file .*not a whole safetensors file.*gave up on row 'row-0.* run again",
        ),
        (size_first, r"row 'row-0 .*(has id 0 at position|is zero at \d+ of \d+ tokens).*"),
    ],
)
def test_a_file_that_is_not_written_whole_is_refused(
    build: Build, tmp_path: Path, write: Callable[[Path, dict[str, torch.Tensor]], None], message: str
) -> None:
    with (
        serve(build, "vllm", tmp_path, write_file=write) as server,
        pytest.raises(EngineError, match=message),
    ):
        extract(build, server, TWENTIES, tmp_path.name, timeout=0.3)
    assert not build.hidden(tmp_path.name).exists()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_token_equal_rows_and_rows_that_begin_alike_are_not_refused(
    build: Build, tmp_path: Path, kind: str
) -> None:
    """Equal tokens at a row's beginning attend to equal values, so all their states are equal, in any layer."""
    rows = [
        token_row("one token", [7] * 4, [7] * 12),
        token_row("one token, longer", [7] * 4, [7] * 20),
        token_row("a row", [5, 9, 4], [4, 4, 9, 5, 5]),
        token_row("the same row", [5, 9, 4], [4, 4, 9, 5, 5]),
        token_row("its beginning", [5, 9, 4], [4, 4, 9]),
    ]
    with serve(build, kind, tmp_path) as server:
        assert len(HiddenStates(extract(build, server, rows, tmp_path.name))) == len(rows)


def test_tokens_without_an_embedding_and_tokens_that_share_one_are_not_refused(
    tmp_path: Path, kimi: TargetRecord
) -> None:
    """A padding token's embedding is often zero, and unused ids often share one: so are their states."""
    build = Build(tmp_path / "build", kimi)
    weights = build.model / "model.safetensors"
    tensors = load_tensors(weights)
    embedding = tensors["model.embed_tokens.weight"]
    embedding[0], embedding[8] = 0, embedding[7]
    save_tensors(weights, tensors, {"format": "pt"})
    rows = [token_row("padded", [0, 0, 7], [8, 5, 9]), token_row("alias", [0, 0, 8], [7, 5, 9])]
    with serve(build, "vllm", tmp_path) as server:
        assert len(HiddenStates(extract(build, server, rows, "data"))) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_whose_head_is_rounded_to_float8_is_not_refused(
    build: Build, tmp_path: Path, kind: str, dtype: str
) -> None:
    rows = random_rows([(f"row-{number}", 3, 5 + number % 9) for number in range(40)])
    noise = torch.Generator().manual_seed(0)

    def rounded(logits: torch.Tensor) -> int:
        """Add 1 % of the largest logit, as a head of float8 does, and pick the best."""
        noisy = logits.float() + 0.01 * logits.float().abs().max() * torch.randn(len(logits), generator=noise)
        return int(noisy.argmax())

    with serve(build, kind, tmp_path, dtype=dtype, choose=rounded) as server:
        section = EngineSection(url=server.url, folder=str(tmp_path), concurrency=4)
        settings = {"backend": kind, "tokens_per_batch": 1, "compute_dtype": dtype, "dtype": dtype}
        assert len(HiddenStates(build.extract(rows, tmp_path.name, section, **settings))) == len(rows)


def test_a_server_that_prefers_the_other_of_two_tied_tokens_is_not_refused(tmp_path: Path, kimi: TargetRecord) -> None:
    build = Build(tmp_path / "build", kimi)
    weights = build.model / "model.safetensors"
    tensors = load_tensors(weights)
    head = tensors["lm_head.weight"]
    head[VOCAB // 2 :] = head[: VOCAB // 2]
    save_tensors(weights, tensors, {"format": "pt"})
    with serve(build, "vllm", tmp_path) as server:
        server.choose = lambda logits: VOCAB - 1 - int(logits.flip(0).argmax())
        assert len(HiddenStates(extract(build, server, TWENTIES, "data"))) == len(TWENTIES)


def replies_of(states: torch.Tensor, next_ids: list[int]) -> list[EngineReply]:
    return [EngineReply((), state[None, None], token, 0) for state, token in zip(states, next_ids, strict=True)]


def test_the_margin_of_the_head_is_wide_for_rounding_and_narrow_for_states_of_other_rows(build: Build) -> None:
    """Of 2,000 states: the choices of a float8 head pass with room to spare, and nine in ten swapped ones do not."""
    ends = open_ends(build.model)
    states = torch.randn(2000, WIDTH, generator=torch.Generator().manual_seed(0))
    scale = ends.head.abs().max() / 448
    narrow_head = (ends.head / scale).to(torch.float8_e4m3fn).float() * scale
    normed = ends.teacher_hidden(states)
    rows = [InputRow(f"row-{number}", torch.tensor([number]), 0) for number in range(2000)]
    chosen = (normed.bfloat16().float() @ narrow_head.T).argmax(-1).tolist()
    check_next_tokens(ends, rows, replies_of(states, chosen), "server")
    logits = normed @ ends.head.T
    behind = (logits.amax(-1) - logits[torch.arange(2000), chosen]) / logits.abs().amax(-1)
    assert behind.max() < MARGIN
    assert behind.max() > 0, "the float8 head chooses as the exact one does: the test shows nothing"
    refused = 0
    for row, reply in zip(rows, replies_of(states, chosen[1:] + chosen[:1]), strict=True):
        try:
            check_next_tokens(ends, [row], [reply], "server")
        except EngineError:
            refused += 1
    assert refused > 1800


def test_a_token_outside_the_vocabulary_is_refused(build: Build) -> None:
    ends = open_ends(build.model)
    row = InputRow("row", torch.tensor([1]), 0)
    with pytest.raises(
        EngineError, match=rf"row 'row': the server writes token {VOCAB}; .* vocabulary has {VOCAB} ids"
    ):
        check_next_tokens(ends, [row], replies_of(torch.ones(1, WIDTH), [VOCAB]), "server")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_copy_of_a_state_is_found_among_many_in_every_type(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(3000, 2, 16, generator=generator).to(dtype)
    row = InputRow("row", torch.arange(3000, dtype=torch.int32), 0)
    checks = StateChecks(torch.randn(3000, 16, generator=generator), (2, 8), "server")
    checks.check(row, states)
    copied = states.clone()
    copied[2999, 1] = copied[11, 1]
    with pytest.raises(EngineError, match="tokens 11 and 2999 are 11 and 2999, and have the same state of layer 8"):
        checks.check(row, copied)
