"""The model card of an export: use, commands to serve, measurements, training data."""

import hashlib
from typing import Any

from pipeline.core.files.json_file import to_json
from pipeline.drafter.config import DrafterConfig
from pipeline.formats.schema.target import TargetRecord


def model_card(config: DrafterConfig, record: TargetRecord, measured: dict[str, Any]) -> str:
    """Return Markdown with what a reader needs to use and to trace the drafter."""
    data = "\n".join(f"| {name} | `{digest}` |" for name, digest in sorted(config.trained_on.items()))
    rows = {"all": measured, **measured["datasets"]}
    scores = "\n".join(
        f"| {name} | {row['prompts']} | {row['acceptance_length']:.3f} | {row['tokens_per_round']:.3f} "
        f"| {', '.join(f'{share:.3f}' for share in row['per_position'])} |"
        for name, row in rows.items()
    )
    settings = hashlib.sha256(to_json(config.training)).hexdigest()
    revision = f" at revision `{record.revision}`" if record.revision else ""
    drafts, anchors = measured["draft_tokens"], measured["anchors"]
    speculation = f'{{"model": "vllm", "method": "eagle3", "num_speculative_tokens": {drafts}}}'
    return f"""# EAGLE-3 drafter for {record.model}

A draft model for speculative decoding of `{record.model}`{revision}.
It reads the inputs of the target's layers {config.layer_ids} (of {config.target_layers}; layer 0 reads the embedding),
and can propose {config.draft_vocab_size:,} of the target's {config.vocab_size:,} tokens.

## Serve

    python -m sglang.launch_server --model {record.model} --speculative-algorithm EAGLE3 \\
        --speculative-draft-model-path sglang --speculative-num-steps {drafts} --speculative-eagle-topk 1 \\
        --speculative-num-draft-tokens {drafts + 1}

    vllm serve {record.model} --speculative-config '{speculation}'

With SGLang the algorithm must be `EAGLE3`: `EAGLE` loads the same files, skips `fc`, and accepts nothing.

## Measured

Greedy chain drafting, {drafts} draft tokens, on held-out prompts.
The output was the target's own for {measured["identical_to_plain_greedy"]} of {measured["prompts"]} prompts.
Acceptance length is 1 plus the accepted drafts per verification, from summed counts over whole rounds.
Tokens per round also counts the rounds that an answer's end cut short.

| prompts of | number | acceptance length | tokens per round | accepted up to position |
|---|---|---|---|---|
{scores}

Anchors: an oracle {anchors["oracle"]:.3f}, an untrained drafter {anchors["untrained"]:.3f}.
Offline estimate {measured["offline_estimate"]["acceptance_length"]:.3f}.

## Trained on

| dataset | digest of its hidden states |
|---|---|
{data}

Target's weights `{config.target_sha256}`, tokenizer `{record.tokenizer_sha256}`, training settings `{settings}`.
"""
