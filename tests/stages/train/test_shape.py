"""The drafter's layer for targets that are not plain Llamas."""

from typing import Any

import pytest
import transformers

from pipeline.core.errors import ConfigError
from pipeline.stages.train.shape import layer_shape, rope_of
from tests.tiny import train_settings

pytestmark = pytest.mark.slow

PLAIN = {"rope_type": "default", "rope_theta": 10000.0}


def test_a_target_with_a_rotary_embedding_for_each_kind_of_layer_lends_that_of_full_attention() -> None:
    text = transformers.Gemma3TextConfig()
    assert set(text.rope_parameters) == {"full_attention", "sliding_attention"}
    assert rope_of(text, 16) == {"rope_type": "default", "rope_theta": 1e6}


def test_a_target_that_turns_a_part_of_each_head_or_by_several_positions_lends_the_plain_embedding() -> None:
    assert rope_of(transformers.Qwen3NextConfig(), 16) == PLAIN
    text = transformers.LlamaConfig(rope_parameters={**PLAIN, "mrope_section": [1, 1, 2], "mrope_interleaved": True})
    assert rope_of(text, 16) == PLAIN


@pytest.mark.parametrize(("head_dim", "rope_type"), [(8, "longrope"), (16, "default")])
def test_factors_for_heads_of_another_width_are_left_out(head_dim: int, rope_type: str) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    text = transformers.LlamaConfig(
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 128,
            **factors,
        }
    )
    assert rope_of(text, head_dim)["rope_type"] == rope_type


def test_scaling_that_a_plain_layer_has_is_kept() -> None:
    scaling = {"rope_type": "yarn", "rope_theta": 5e4, "factor": 64.0, "original_max_position_embeddings": 4096}
    assert rope_of(transformers.LlamaConfig(rope_parameters=scaling), 128) == scaling


@pytest.mark.parametrize(
    "text",
    [transformers.GPT2Config(n_embd=32, n_head=4), transformers.OPTConfig(hidden_size=32, num_attention_heads=4)],
)
def test_a_target_without_rotary_embedding_gets_a_plain_one_and_must_be_told_a_size_that_it_does_not_say(
    text: Any,
) -> None:
    with pytest.raises(
        ConfigError, match=r"train.intermediate_size is null, and the config of this target .* set it, to 128"
    ):
        layer_shape(train_settings(), text)
    shape = layer_shape(train_settings(intermediate_size=64), text)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.rope_parameters) == (4, 4, 8, PLAIN)
