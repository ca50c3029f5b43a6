"""The check of a special-token map against the tokenizer, the checked record, and the tokenizer that belongs to it."""

from pipeline.core.errors import TokenizerError
from pipeline.formats.schema.target import TargetRecord, TargetSpec
from pipeline.model.tokenizer.loading import load_tokenizer
from pipeline.model.tokenizer.tokenizer import Tokenizer

_KIMI = {
    "end": "<|im_end|>",
    "think_open": "<think>",
    "think_close": "</think>",
    "tools_open": "<|tool_calls_section_begin|>",
    "tools_close": "<|tool_calls_section_end|>",
    "call_open": "<|tool_call_begin|>",
    "call_args": "<|tool_call_argument_begin|>",
    "call_close": "<|tool_call_end|>",
}

FORMAT_ROLES: dict[str, dict[str, str]] = {
    "kimi_k25": _KIMI,
    "kimi_k2": _KIMI,
    "qwen3": {
        "end": "<|im_end|>",
        "think_open": "<think>",
        "think_close": "</think>",
        "call_open": "<tool_call>",
        "call_close": "</tool_call>",
    },
    "deepseek_v3": {
        "end": "<｜end▁of▁sentence｜>",
        "think_open": "<think>",
        "think_close": "</think>",
        "tools_open": "<｜tool▁calls▁begin｜>",
        "tools_close": "<｜tool▁calls▁end｜>",
        "call_open": "<｜tool▁call▁begin｜>",
        "call_args": "<｜tool▁sep｜>",
        "call_close": "<｜tool▁call▁end｜>",
    },
}
"""The marker of each role in a chat format: a marker that exists but has another role is as wrong as a missing one."""


def special_token_faults(spec: TargetSpec, tokenizer: Tokenizer) -> list[str]:
    """Return all faults of a special-token map, in both directions: text to id and id to text.

    A round trip alone is not enough: 163533 decodes to "chas" and back without a fault, and is not ``<|im_end|>``.
    """
    faults = []
    owners: dict[int, str] = {}
    for text, token in spec.special_tokens.items():
        where = f"target.special_tokens[{text!r}] is {token}"
        right = tokenizer.special_ids.get(text)
        hint = f"; the tokenizer has {text!r} at {right}" if right is not None else ""
        if not 0 <= token < spec.vocab_size:
            faults.append(f"{where}, outside the model's vocabulary of {spec.vocab_size}{hint}")
        elif token in owners:
            faults.append(f"{where}, which {owners[token]!r} already has{hint}")
        elif token not in tokenizer.special_texts:
            faults.append(
                f"{where}, but {token} is not a special token: it is the ordinary text {tokenizer.show(token)!r}{hint}"
            )
        elif tokenizer.special_texts[token] != text:
            faults.append(f"{where}, but {token} is {tokenizer.special_texts[token]!r}{hint}")
        owners.setdefault(token, text)
    for role, text in spec.roles:
        if text is not None and text not in spec.special_tokens:
            faults.append(f"target.roles.{role} is {text!r}, which target.special_tokens does not name")
        elif text is not None and text != (wanted := FORMAT_ROLES[spec.chat].get(role)):
            faults.append(f"target.roles.{role} is {text!r}; in the chat format {spec.chat} it is {wanted!r}")
    return faults


def make_record(spec: TargetSpec, tokenizer: Tokenizer) -> TargetRecord:
    """Check a target's tokenizer and special-token map against each other; return the checked record.

    Raises:
        TokenizerError: the map and the tokenizer disagree; one message names every fault.

    """
    if faults := special_token_faults(spec, tokenizer):
        listed = "\n  ".join(faults)
        raise TokenizerError(
            f"target {spec.name!r}: the special-token map does not fit the tokenizer; nothing was built:\n  {listed}\n"
            f"Correct conf/target/{spec.name}.yaml, or the file that it inherits the map from."
        )
    digest = tokenizer.sha256()
    if spec.tokenizer.sha256 not in (None, digest):
        raise TokenizerError(
            f"target {spec.name!r}: the tokenizer's digest is {digest}, conf/target/{spec.name}.yaml expects "
            f"{spec.tokenizer.sha256}: another vocabulary was loaded"
        )
    shared = {name: getattr(spec, name) for name in TargetSpec.model_fields}
    return TargetRecord(**shared, tokenizer_sha256=digest)


def open_tokenizer(record: TargetRecord) -> Tokenizer:
    """Load the tokenizer of a checked target; refuse any tokenizer but the one that it was checked with.

    Raises:
        TokenizerError: the tokenizer cannot be loaded or is not the recorded one, or the record's map does not fit it.

    """
    tokenizer = load_tokenizer(record)
    if faults := special_token_faults(record, tokenizer):
        listed = "\n  ".join(faults)
        raise TokenizerError(
            f"target {record.name!r}: its record was changed after the check; run `dvc repro target`:\n  {listed}"
        )
    if (digest := tokenizer.sha256()) != record.tokenizer_sha256:
        raise TokenizerError(
            f"target {record.name!r}: the tokenizer's digest is {digest}, recorded was {record.tokenizer_sha256}; a "
            "library upgrade changed it: run `dvc repro target` and read the difference"
        )
    return tokenizer
