"""Names of a target's end tensors: those of the code, and those in a checkpoint."""

import pytest

from pipeline.core.errors import ArtifactError
from pipeline.model.weights.ends import _stored_name
from pipeline.model.weights.source import WeightsSource

pytestmark = pytest.mark.slow

SOURCE = WeightsSource("some-model")
WRAPPED = {"language_model.model.norm.weight": "a.safetensors", "vision.norm.weight": "b.safetensors"}


@pytest.mark.parametrize(
    ("files", "renamed", "stored"),
    [
        ({"model.norm.weight": "a", **WRAPPED}, {}, "model.norm.weight"),
        (WRAPPED, {}, "language_model.model.norm.weight"),
        (WRAPPED, {"model.norm.weight": ["vision.norm.weight"]}, "vision.norm.weight"),
    ],
    ids=["the same name", "other wrappers", "renamed on loading"],
)
def test_a_tensor_is_found_by_its_name_by_a_renaming_or_within_other_wrappers(
    files: dict[str, str], renamed: dict[str, list[str]], stored: str
) -> None:
    assert _stored_name("model.norm.weight", files, renamed, SOURCE) == stored


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"vision.norm.weight": "a"}, r"some-model: needs exactly one tensor 'model.norm.weight' .*found none among 1"),
        (
            {**WRAPPED, "norm.weight": "a"},
            r"found \['language_model.model.norm.weight', 'norm.weight'\] among 3 tensors",
        ),
    ],
    ids=["none", "two"],
)
def test_no_tensor_or_several_are_refused_with_their_names(files: dict[str, str], complaint: str) -> None:
    with pytest.raises(ArtifactError, match=complaint):
        _stored_name("model.norm.weight", files, {}, SOURCE)
