"""Recipes: copied over a clone with prompt files, each composes to the build that its page promises."""

from pathlib import Path

import pytest

from pipeline.project.compose import build_config
from pipeline.project.params import read_params
from pipeline.project.settings import BuildConfig
from tests.conftest import ROOT
from tests.workspace import copy_of_repository

pytestmark = pytest.mark.slow

PROMPT = '{"id":"a","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"hello"}]}\n'


@pytest.fixture
def kimi_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuildConfig:
    workspace = copy_of_repository(tmp_path)
    workspace.run("bash", "-c", "cp -r conf/recipes/kimi_k25/. .")
    monkeypatch.chdir(tmp_path)
    params = read_params()
    for name in (*params.datasets, "kimi_heldout"):
        workspace.write(f"data/{name}.jsonl", PROMPT)
    return build_config(params)


def test_the_kimi_recipe_has_eight_capped_datasets_through_openrouter(kimi_build: BuildConfig) -> None:
    assert len(kimi_build.names) == 8
    assert (kimi_build.target.name, kimi_build.provider.kind, kimi_build.budget.usd) == ("kimi_k25", "openrouter", 100)
    assert {dataset.budget.completion_tokens for dataset in kimi_build.datasets.values()} == {10_000_000}
    assert all(
        dataset.send_tools is (name in ("agentic", "function_calling")) for name, dataset in kimi_build.datasets.items()
    )


def test_what_is_in_flight_leaves_room_below_every_cap(kimi_build: BuildConfig) -> None:
    """Requests reserve their worst case, so a high concurrency would leave a budget unspent."""
    assert kimi_build.budget.usd is not None
    assert kimi_build.provider.max_price.completion is not None
    for dataset in kimi_build.datasets.values():
        assert dataset.budget.completion_tokens is not None
        assert dataset.sampling.max_tokens is not None
        reserved = kimi_build.provider.concurrency * dataset.sampling.max_tokens
        assert reserved <= 0.7 * dataset.budget.completion_tokens
        assert reserved * kimi_build.provider.max_price.completion / 1e6 <= 0.25 * kimi_build.budget.usd


def test_the_page_names_every_dataset_of_the_recipe(kimi_build: BuildConfig) -> None:
    page = (ROOT / "docs/recipes/kimi-k2.5.md").read_text()
    for name, dataset in kimi_build.datasets.items():
        assert f"| `{name}` | {dataset.prompts.limit:,} |" in page


def test_the_kimi_recipe_goes_with_a_serving_engine(kimi_build: BuildConfig) -> None:
    params = read_params()
    served = build_config(params._replace(overrides=[*params.overrides, "extract=vllm", "engine.url=http://gpu7:8000"]))
    assert served.engine is not None
    assert served.extract == kimi_build.extract.model_copy(update={"backend": "vllm"})
