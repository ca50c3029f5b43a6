"""The model card: what the drafter is for, what it was trained on, what it measured, how to serve it."""

import hashlib
from typing import Any

from pipeline.core.files.json_file import to_json
from pipeline.drafter.config import DrafterConfig
from pipeline.formats.schema.target import TargetRecord


def model_card(config: DrafterConfig, record: TargetRecord, measured: dict[str, Any]) -> str:
    """Markdown with everything a reader needs to use and to trace the drafter."""
    data = "\n".join(f"| {name} | `{digest}` |" for name, digest in sorted(config.trained_on.items()))
    rows = {"all": measured, **measured["datasets"]}
    scores = "\n".join(
        f"| {name} | {row['prompts']} | {row['acceptance_length']:.3f} | {row['tokens_per_round']:.3f} | {', '.join(f'{share:.3f}' for share in row['per_position'])} |"
        for name, row in rows.items()
    )
    digest = hashlib.sha256(to_json(config.training)).hexdigest()
    return f"""# EAGLE-3 drafter for {record.model}

A draft model for speculative decoding of `{record.model}`{f" at revision `{record.revision}`" if record.revision else ""}. It reads the inputs of the
target's layers {config.layer_ids} (of {config.target_layers}; layer 0 reads the embedding) and says {config.draft_vocab_size:,} of the target's {config.vocab_size:,} tokens.

## Serve

    python -m sglang.launch_server --model {record.model} --speculative-algorithm EAGLE3 --speculative-draft-model-path sglang \\
        --speculative-num-steps {measured["draft_tokens"]} --speculative-eagle-topk 1 --speculative-num-draft-tokens {measured["draft_tokens"] + 1}

    vllm serve {record.model} --speculative-config '{{"model": "vllm", "method": "eagle3", "num_speculative_tokens": {measured["draft_tokens"]}}}'

With SGLang the algorithm must be `EAGLE3`: `EAGLE` loads the same files, skips `fc`, and accepts nothing.

## Measured

Greedy chain drafting, {measured["draft_tokens"]} draft tokens, on held-out prompts; the output was the target's own for {measured["identical_to_plain_greedy"]} of {measured["prompts"]} prompts.
Acceptance length is 1 plus the accepted drafts a verification, from summed counts over whole rounds; tokens a round counts those that an answer's end cut short as well.

| prompts of | number | acceptance length | tokens a round | accepted up to position |
|---|---|---|---|---|
{scores}

Anchors: an oracle {measured["anchors"]["oracle"]:.3f}, an untrained drafter {measured["anchors"]["untrained"]:.3f}. Offline estimate {measured["offline_estimate"]["acceptance_length"]:.3f}.

## Trained on

| dataset | digest of its hidden states |
|---|---|
{data}

Target's weights `{config.target_sha256}`, tokenizer `{record.tokenizer_sha256}`, training settings `{digest}`.
"""
