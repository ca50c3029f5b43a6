"""The server backends, against a server with the interfaces of vLLM and SGLang."""

import itertools
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.core.errors import AerieError, EngineError
from pipeline.core.files.digests import sha256_file
from pipeline.core.files.json_file import read_model
from pipeline.formats.hidden_states import HiddenStates
from pipeline.formats.schema.hidden import Manifest
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.weights.ends import open_ends
from pipeline.model.weights.target import open_shape
from pipeline.stages.extract.config import EngineSection
from pipeline.stages.extract.engines import client as server_module
from tests.polling import TIMEOUT_S
from tests.stages.extract.engine_server import EngineServer
from tests.tiny import LAYERS, ROWS, VOCAB, WIDTH, Build, random_rows, save_target

pytestmark = pytest.mark.slow

KINDS = ["vllm", "sglang"]
ALONE: dict[str, Any] = {"tokens_per_batch": 1}
"""Settings by which the transformers backend computes each row alone: then the same code gives the same bits."""


@pytest.fixture(scope="module", autouse=True)
def _shapes_are_made_once() -> Iterator[None]:
    """Make the model on the device `meta` once: for each test anew it would take a fifth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module, "open_shape", cache(open_shape))
        patch.setattr(server_module, "open_ends", cache(open_ends))
        yield


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, kimi: TargetRecord) -> Build:
    return Build(tmp_path_factory.mktemp("build"), kimi)


@pytest.fixture(scope="module")
def local(build: Build) -> Path:
    return build.extract(random_rows(ROWS), "local", **ALONE)


@pytest.fixture
def server(build: Build, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EngineServer]:
    kind = request.node.callspec.params.get("kind", "vllm") if hasattr(request.node, "callspec") else "vllm"
    with EngineServer(kind, build.model, [2, 4, 5, LAYERS], tmp_path) as running:
        yield running


def section(server: EngineServer, **changes: Any) -> EngineSection:
    return EngineSection(
        **{
            "url": server.url,
            "folder": str(server.folder),
            "concurrency": 3,
            "attempts": 3,
            "max_wait": 0.01,
            "timeout": TIMEOUT_S,
            **changes,
        }
    )


def extract(
    build: Build, server: EngineServer, tmp_path: Path, rows: Any = None, name: str = "", **changes: Any
) -> Path:
    """Run the stage with the server; ``engine`` has settings of the engine."""
    engine = section(server, **changes.pop("engine", {}))
    name = name or f"{tmp_path.name}-{server.kind}"
    return build.extract(
        random_rows(ROWS) if rows is None else rows, name, engine, **{"backend": server.kind, **ALONE, **changes}
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_servers_states_are_those_of_the_transformers_backend_bit_for_bit_and_lie_in_the_same_places(
    build: Build, local: Path, server: EngineServer, tmp_path: Path, kind: str
) -> None:
    found = extract(build, server, tmp_path)
    names = sorted(path.name for path in local.iterdir())
    assert sorted(path.name for path in found.iterdir()) == names
    for name in names:
        if name != "manifest.json":
            assert sha256_file(found / name) == sha256_file(local / name), name
    ours, theirs = (read_model(folder / "manifest.json", Manifest) for folder in (local, found))
    assert theirs == ours.model_copy(update={"backend": kind, "engine": f"{kind} 9.9.9"})
    assert list(server.folder.glob("cmpl-*")) == []
    assert len(server.asked) == 4 + len(ROWS)


@pytest.mark.parametrize("kind", KINDS)
def test_narrow_states_come_through_exactly(build: Build, tmp_path: Path, kind: str) -> None:
    reference = HiddenStates(
        build.extract(random_rows(ROWS), f"narrow-{kind}", dtype="bfloat16", compute_dtype="bfloat16", **ALONE)
    )
    with EngineServer(kind, build.model, [2, 4, 5, LAYERS], tmp_path, dtype="bfloat16") as server:
        found = HiddenStates(extract(build, server, tmp_path, dtype="bfloat16", compute_dtype="bfloat16"))
    for number in range(len(ROWS)):
        assert torch.equal(found[number].aux, reference[number].aux)
        assert torch.equal(found[number].last, reference[number].last)


def test_the_last_layers_output_may_be_an_auxiliary_layer_as_well(build: Build, tmp_path: Path) -> None:
    with EngineServer("vllm", build.model, [2, 5, LAYERS], tmp_path) as server:
        found = HiddenStates(extract(build, server, tmp_path, layers=[2, 5, LAYERS]))
    assert torch.equal(found[0].aux[:, -WIDTH:], found[0].last)


def change_id(document: dict[str, Any]) -> None:
    holder = document if "prompt_token_ids" in document else document["choices"][0]
    holder["prompt_token_ids"] = [*holder["prompt_token_ids"]]
    holder["prompt_token_ids"][3] = (holder["prompt_token_ids"][3] + 1) % VOCAB


def cached(document: dict[str, Any]) -> None:
    if "meta_info" in document:
        document["meta_info"]["cached_tokens"] = 16
    else:
        document["usage"]["prompt_tokens_details"] = {"cached_tokens": 16}


def write_a_word(document: dict[str, Any]) -> None:
    if "meta_info" in document:
        document["output_ids"] = ["x"]
    else:
        document["choices"][0]["token_ids"] = ["x"]


def count_in_words(document: dict[str, Any]) -> None:
    if "meta_info" in document:
        document["meta_info"]["cached_tokens"] = "none"
    else:
        document["usage"]["prompt_tokens_details"] = {"cached_tokens": "none"}


def spoil(states: torch.Tensor) -> torch.Tensor:
    states = states.clone()
    states[2, 1, 7] = torch.nan
    return states


def normed(states: torch.Tensor) -> torch.Tensor:
    """Return states whose last layer is normed, with the norm's weights, which are not one."""
    states = states.clone()
    states[:, -1] = NORMED.norm(states[:, -1])
    return states


NORMED: Any = None

ANSWERS: dict[str, tuple[dict[str, Any], str]] = {
    "other ids": (
        {"bend": change_id},
        r"row 'long \(its first 12 tokens\)': the reply has id \d+ at position 3, \d+ was sent",
    ),
    "an id too few": (
        {"bend": lambda d: (d.get("choices", [d])[0])["prompt_token_ids"].pop()},
        r"has 11 token ids, 12 were sent",
    ),
    "cached tokens": ({"bend": cached}, r"16 of 12 tokens came from the prefix cache"),
    "too wide": (
        {"bend_states": lambda s: torch.cat([s, s], -1)},
        r"shape \[12, (4|8), (64|32)\]; \[12, 4, 32\] is needed",
    ),
    "a state too few": ({"bend_states": lambda s: s[:, 1:]}, r"shape \[12, 3, 32\]; \[12, 4, 32\] is needed"),
    "a token too few": ({"bend_states": lambda s: s[1:]}, r"shape \[11, 4, 32\].*prefix caching or chunked prefill"),
    "not a number": ({"bend_states": spoil}, r"layer 4 at token 2 is not finite"),
    "zeros": (
        {"bend_states": lambda s: torch.cat([torch.zeros_like(s[:, :1]), s[:, 1:]], 1)},
        r"the state of layer 2 is zero at 12 of 12 tokens, first at token 0: this engine does not capture that layer",
    ),
    "normed": ({"bend_states": normed}, r"normed already"),
    "another layer's last": (
        {"bend_states": lambda s: s[:, [0, 1, 2, 0]]},
        r"writes token \d+, head\(norm\(last state\)\) gives \d+",
    ),
    "no states": (
        {"bend": lambda d: d.pop("kv_transfer_params", None) or d["meta_info"].pop("hidden_states")},
        r"the reply lacks",
    ),
    "a word for a token": ({"bend": write_a_word}, r"ids\[0\] is 'x'; a whole number is needed"),
    "a word for a count": ({"bend": count_in_words}, r"cached_tokens is 'none'; a whole number is needed"),
    "nothing for ids": (
        {"bend": lambda d: d.get("choices", [d])[0].update(prompt_token_ids=None)},
        r"the reply has 'None' instead of the 12 token ids",
    ),
    "no ids": (
        {"bend": lambda d: d.get("choices", [d])[0].pop("prompt_token_ids")},
        r"the reply lacks 'prompt_token_ids'",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ANSWERS)
def test_an_answer_that_is_not_the_rows_states_is_refused_and_not_asked_for_again(
    build: Build, server: EngineServer, tmp_path: Path, kind: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bent, message = ANSWERS[fault]
    monkeypatch.setitem(globals(), "NORMED", server.target)
    for name, value in bent.items():
        if fault == "no states" and kind == "sglang":
            value = lambda d: d["meta_info"].pop("hidden_states")  # noqa: E731
        setattr(server, name, value)
    with pytest.raises(EngineError, match=message):
        extract(build, server, tmp_path)
    assert len(server.asked) <= 4  # the probe's four beginnings, each once
    assert not build.hidden(f"{tmp_path.name}-{kind}").exists()


def document(**changes: Any) -> bytes:
    return json.dumps(changes).encode()


@pytest.mark.parametrize(
    ("kind", "says", "message"),
    [
        (
            "vllm",
            {"/metrics": b'vllm:cache_config_info{enable_prefix_caching="True"} 1.0'},
            "prefix caching is on.*--no-enable-prefix-caching",
        ),
        ("vllm", {"/metrics": b""}, "does not report whether it caches prefixes"),
        (
            "vllm",
            {
                "/server_info?config_format=json": (
                    b'{"c": "{\\n \\"eagle_aux_hidden_state_layer_ids\\": [\\n 3,\\n 5, 6, 8 ]"}'
                )
            },
            r"launched for layers \[3, 5, 6, 8\].*need \[2, 4, 5, 8\]",
        ),
        ("vllm", {"/version": b""}, "is this a vLLM server"),
        (
            "vllm",
            {"/v1/models": document(data=[{"id": "other", "root": "org/other"}])},
            "serves org/other alias other; the target is .*model",
        ),
        ("vllm", {"/v1/models": document(data=[{"id": "served", "root": "?", "max_model_len": 20}])}, "the target is"),
        ("vllm", {"/v1/models": document(data=["served"])}, "is this a vLLM server"),
        (
            "vllm",
            {"/v1/models": document(data=[{"id": "served", "max_model_len": "20"}])},
            "max_model_len is '20'; a whole number is needed",
        ),
        ("sglang", {"/v1/models": document(data=["served"])}, "is this an SGLang server"),
        ("sglang", {"/server_info": document(version="1")}, "prefix caching is on.*--disable-radix-cache"),
        (
            "sglang",
            {"/server_info": document(version="1", disable_radix_cache=True)},
            "without --enable-return-aux-hidden-states",
        ),
        (
            "sglang",
            {
                "/server_info": document(
                    version="1",
                    disable_radix_cache=True,
                    enable_return_aux_hidden_states=True,
                    return_aux_hidden_state_layer_ids=[2, 4, 5, 7],
                )
            },
            r"launched for layers \[2, 4, 5, 7\].*need \[1, 3, 4, 7\]",
        ),
        (
            "sglang",
            {"/server_info": document(version="1", disable_radix_cache=True, enable_return_aux_hidden_states=True)},
            "launched for layers .*none named",
        ),
        ("sglang", {"/model_info": document(model_path="org/other")}, "serves org/other; the target is"),
    ],
)
def test_a_server_that_is_launched_otherwise_or_serves_something_else_is_refused(
    build: Build, server: EngineServer, tmp_path: Path, kind: str, says: dict[str, bytes], message: str
) -> None:
    server.says = says
    with pytest.raises(EngineError, match=message):
        extract(build, server, tmp_path)


def test_the_same_model_under_another_name_is_taken_when_the_config_says_so(
    build: Build, server: EngineServer, tmp_path: Path
) -> None:
    server.says = {"/v1/models": document(data=[{"id": "alias", "root": "/elsewhere", "max_model_len": 500}])}
    extract(build, server, tmp_path, engine={"model": "alias"})
    assert server.asked[0]["model"] == "alias"


def test_a_row_that_the_server_has_no_room_for_is_named(build: Build, server: EngineServer, tmp_path: Path) -> None:
    server.says = {"/v1/models": document(data=[{"id": "served", "root": str(build.model), "max_model_len": 49}])}
    with pytest.raises(EngineError, match=r"has 49 tokens; the server takes 48"):
        extract(build, server, tmp_path)


@pytest.mark.parametrize("named", ["/etc/passwd", "../secret.safetensors", "link/secret.safetensors", "plain.txt", ""])
def test_a_file_outside_the_folder_is_neither_read_nor_removed(
    build: Build, server: EngineServer, tmp_path: Path, named: str
) -> None:
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.mkdir()
    for path in (secret / "secret.safetensors", tmp_path.parent / "secret.safetensors", tmp_path / "plain.txt"):
        path.write_bytes(b"secret")
    (tmp_path / "link").symlink_to(secret)
    place = named if named.startswith("/") else f"{tmp_path}/{named}"
    server.bend = lambda d: d.update(kv_transfer_params={"hidden_states_path": place})
    with pytest.raises(EngineError, match=r"the server names the file .*; it must be a .safetensors file in"):
        extract(build, server, tmp_path)
    assert (secret / "secret.safetensors").read_bytes() == (tmp_path / "plain.txt").read_bytes() == b"secret"


def test_a_folder_that_the_servers_machine_calls_otherwise_is_found(
    build: Build, server: EngineServer, tmp_path: Path
) -> None:
    server.bend = lambda d: d.update(
        kv_transfer_params={
            "hidden_states_path": f"/over/there/{Path(d['kv_transfer_params']['hidden_states_path']).name}"
        }
    )
    extract(build, server, tmp_path, engine={"server_folder": "/over/there"})


def test_a_file_is_read_only_when_the_server_has_let_go_of_it_and_may_be_kept(
    build: Build, local: Path, server: EngineServer, tmp_path: Path
) -> None:
    server.slow = 0.05
    found = extract(build, server, tmp_path, engine={"delete_files": False})
    assert sha256_file(found / "shard-00000.safetensors") == sha256_file(local / "shard-00000.safetensors")
    assert len(list(tmp_path.glob("cmpl-*.safetensors"))) == len(server.asked)


def test_a_file_of_another_rows_tokens_is_refused(build: Build, server: EngineServer, tmp_path: Path) -> None:
    server.bend_file = lambda tensors: tensors["token_ids"].sub_(1)
    with pytest.raises(EngineError, match=r"cmpl-\w+.safetensors has id -?\d+ at position 0"):
        extract(build, server, tmp_path)


def test_a_file_that_never_comes_is_asked_for_again_and_then_given_up(
    build: Build, server: EngineServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that advances half a minute at each look replaces the real one."""
    looks = itertools.count()
    monkeypatch.setattr(
        "pipeline.stages.extract.engines.vllm.time",
        SimpleNamespace(monotonic=lambda: 30.0 * next(looks), sleep=lambda _: None),
    )
    server.bend = lambda d: d.update(kv_transfer_params={"hidden_states_path": str(tmp_path / "nowhere.safetensors")})
    with pytest.raises(EngineError, match=r"no whole file .*it is not there; .*gave up on row .* after 2 attempts"):
        extract(build, server, tmp_path, engine={"attempts": 2})
    assert len(server.asked) == 2
    assert 8 <= next(looks) <= 16


def test_another_dtype_than_the_config_says_is_refused(build: Build, server: EngineServer, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"states are torch.float32, extract.compute_dtype is torch.bfloat16"):
        extract(build, server, tmp_path, compute_dtype="bfloat16")


@pytest.mark.parametrize(
    ("served", "wanted"), [("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16")]
)
def test_the_type_that_sglangs_numbers_were_computed_in_is_told_by_rounding(
    build: Build, tmp_path: Path, served: str, wanted: str
) -> None:
    told = pytest.raises(EngineError, match=rf"states are torch.{served}, extract.compute_dtype is torch.{wanted}")
    with EngineServer("sglang", build.model, [2, 4, 5, LAYERS], tmp_path, dtype=served) as server, told:
        extract(build, server, tmp_path, compute_dtype=wanted)


def test_a_server_that_is_not_there_is_named_at_once(build: Build, tmp_path: Path) -> None:
    engine = EngineSection(url="http://127.0.0.1:9", folder=str(tmp_path))
    with pytest.raises(EngineError, match=r"http://127.0.0.1:9/version: connect: .*is the server up"):
        build.extract(random_rows(ROWS), "gone", engine, backend="vllm")


def test_an_overloaded_server_is_asked_again_and_a_refusal_is_final(
    build: Build, local: Path, server: EngineServer, tmp_path: Path
) -> None:
    server.status = lambda nth: {1: 503, 3: 429, 7: 0}.get(nth, 200)
    found = extract(build, server, tmp_path)
    assert sha256_file(found / "shard-00000.safetensors") == sha256_file(local / "shard-00000.safetensors")
    server.status = lambda nth: 400
    asked = len(server.asked)
    with pytest.raises(EngineError, match=r"row 'long .*HTTP 400: .*as told"):
        extract(build, server, tmp_path, name="refused")
    assert len(server.asked) == asked + 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_dies_leaves_what_is_done_and_the_next_run_goes_on_from_there(
    build: Build, server: EngineServer, tmp_path: Path, kind: str
) -> None:
    rows = random_rows([(f"row-{number}", 5, 20) for number in range(12)])
    settings: dict[str, Any] = {"tokens_per_batch": 50, "shard_bytes": 50 * WIDTH * 16, "rows": rows}
    whole = extract(build, server, tmp_path, name=f"whole-{kind}", **settings)
    server.asked.clear()
    server.status = lambda nth: 200 if nth <= 10 else 0
    name = f"died-{kind}"
    with pytest.raises(
        EngineError, match=r"gave up on row 'row-\d+' after 3 attempts: the shards that are stored are kept"
    ):
        extract(build, server, tmp_path, name=name, **settings)
    partial = build.hidden(name).with_name(".hidden.partial")
    kept = {path.name: path.stat().st_mtime_ns for path in partial.glob("shard-*")}
    assert kept
    server.asked.clear()
    server.status = lambda nth: 200
    resumed = extract(build, server, tmp_path, name=name, **settings)
    assert {path.name: sha256_file(path) for path in resumed.iterdir()} == {
        path.name: sha256_file(path) for path in whole.iterdir()
    }
    assert {name: (resumed / name).stat().st_mtime_ns for name in kept} == kept
    assert len(server.asked) < 4 + len(rows)


def test_half_made_work_of_another_engine_is_not_taken_up(build: Build, server: EngineServer, tmp_path: Path) -> None:
    rows = random_rows([(f"row-{number}", 5, 20) for number in range(6)])
    settings: dict[str, Any] = {"shard_bytes": 1024, "rows": rows, "name": "versions"}
    server.status = lambda nth: 200 if nth <= 7 else 0
    with pytest.raises(EngineError):
        extract(build, server, tmp_path, **settings)
    server.status = lambda nth: 200
    server.version = "9.9.10"
    server.asked.clear()
    extract(build, server, tmp_path, **settings)
    assert len(server.asked) == 4 + len(rows)


def test_a_server_that_comes_back_as_another_is_refused(build: Build, server: EngineServer, tmp_path: Path) -> None:
    def status(nth: int) -> int:
        if nth == 6:
            server.version = "10"
            return 0
        return 200

    server.status = status
    with pytest.raises(EngineError, match=r"was .*vllm 9.9.9.*and came back as .*vllm 10"):
        extract(build, server, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_asked_for_together_but_never_more_than_the_config_allows(
    build: Build, server: EngineServer, tmp_path: Path, kind: str
) -> None:
    server.together = 3
    extract(
        build,
        server,
        tmp_path,
        random_rows([(f"row-{number}", 2, 3) for number in range(12)]),
        engine={"concurrency": 3},
    )
    assert server.most_in_flight == 3


def test_a_key_is_sent_from_the_environment_and_a_missing_one_is_named(
    build: Build, server: EngineServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AerieError, match="ENGINE_KEY, and that variable is not set"):
        extract(build, server, tmp_path, engine={"api_key_env": "ENGINE_KEY"})
    monkeypatch.setenv("ENGINE_KEY", "secret")
    extract(build, server, tmp_path, engine={"api_key_env": "ENGINE_KEY"})
    assert server.headers[-1]["authorization"] == "Bearer secret"


def test_weights_of_another_seed_than_the_servers_are_refused(build: Build, tmp_path: Path, kimi: TargetRecord) -> None:
    other = save_target(tmp_path / "other", seed=5)
    with (
        EngineServer("vllm", other, [2, 4, 5, LAYERS], tmp_path) as server,
        pytest.raises(EngineError, match="of other weights or another layer"),
    ):
        extract(build, server, tmp_path, engine={"model": str(other)})
