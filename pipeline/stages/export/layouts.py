"""The layouts that serving engines load, as pure functions of a checkpoint.

sglang: `LlamaForCausalLMEagle3` with `midlayer.*`, as SafeAILab, SpecForge and SGLang name it. vllm: speculators'
format with `layers.0.*`. Neither has an embedding: engines use the target's. Layer ids are in input convention (id k is
the input of layer k).
"""

from typing import Any

import torch

from pipeline.drafter.config import DrafterConfig
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.weights.layer_ids import default_layers

SPECULATORS_VERSION = "0.9.0"
"""Release of speculators whose format this is."""


def tensors_for_sglang(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the weights in ``dtype``, and `d2t` (int64 offsets) and `t2d` (bool) unchanged."""
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def tensors_for_vllm(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the weights in ``dtype`` under speculators' names."""
    return {
        name.replace("midlayer.", "layers.0.", 1): tensor for name, tensor in tensors_for_sglang(tensors, dtype).items()
    }


def _rope(config: DrafterConfig) -> dict[str, Any]:
    """Return the rotary embedding in the old form (rope_theta, rope_scaling) and the new (rope_parameters).

    Engines read either.
    """
    parameters = config.rope_parameters
    scaling = {name: value for name, value in parameters.items() if name != "rope_theta"}
    plain = parameters.get("rope_type", "default") == "default"
    legacy = None if plain else {**scaling, "type": parameters["rope_type"]}
    return {"rope_theta": parameters["rope_theta"], "rope_scaling": legacy, "rope_parameters": parameters}


def _llama(config: DrafterConfig, record: TargetRecord, dtype: torch.dtype) -> dict[str, Any]:
    """Return the fields of a Llama config."""
    return {
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.hidden_act,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": None,
        "eos_token_id": record.role_id("end"),
        **_rope(config),
    }


def config_for_sglang(config: DrafterConfig, record: TargetRecord, dtype: torch.dtype) -> dict[str, Any]:
    """Return config.json for SGLang (and for vLLM, which reads this layout too).

    Default layers are left out: both engines fall back to the same ones, while SGLang took an explicit list for outputs
    before 2026-05-16 and takes it for inputs since (sgl-project/sglang#25454). Other layers must be written, or the
    engine reads the wrong states without an error.
    """
    named: dict[str, Any] = {}
    if config.layer_ids != default_layers(config.target_layers):
        ids = {"eagle_aux_hidden_state_layer_ids": config.layer_ids}
        named = {**ids, "eagle_config": {**ids, "use_aux_hidden_state": True}}
    return {
        **_llama(config, record, dtype),
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.hidden_size,
        **named,
    }


def config_for_vllm(
    config: DrafterConfig, record: TargetRecord, dtype: torch.dtype, draft_tokens: int
) -> dict[str, Any]:
    """Return config.json in speculators' format.

    It has the norm flags because vLLM takes an absent norm_before_residual for true.
    """
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS_VERSION,
        "draft_vocab_size": config.draft_vocab_size,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "eagle_aux_hidden_state_layer_ids": config.layer_ids,
        "target_hidden_size": config.hidden_size,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "transformer_layer_config": _llama(config, record, dtype),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": draft_tokens,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": record.model, "architectures": config.target_architectures},
        },
    }
