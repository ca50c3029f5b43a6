"""The list of all checks, in the order in which reports show them.

To add a check:

1. Write its function in the module of its kind in this folder: a generator of `Complaint`.
2. List it in `CHECKS`: the name is its key in the configuration and in every report, so a new name breaks both.
3. Add a field of the same name, with the default severity, to `AuditSection` in `pipeline/stages/audit/config.py`, and
   an entry to each file in `conf/audit/`.
4. Plant its fault, and a row at its limit, in `tests/stages/audit/test_checks.py`.

Tests fail until all four are done.
"""

from pipeline.stages.audit.checks import (
    billing,
    contamination,
    degeneration,
    duplicates,
    provenance,
    sanity,
    structure,
    tools,
)
from pipeline.stages.audit.checks.check import DatasetCheck, RowCheck

CHECKS: tuple[RowCheck | DatasetCheck, ...] = (
    RowCheck(
        "ends_with_end_token",
        "The answer ends with the end token, unless the token limit cut it.",
        structure.ends_with_end_token,
    ),
    RowCheck(
        "one_think_close",
        "The answer closes its reasoning once, unless the dataset forbids reasoning or the token limit came first.",
        structure.one_think_close,
    ),
    RowCheck(
        "think_close_position",
        "The answer closes its reasoning before the end token, and something comes between the two.",
        structure.think_close_position,
    ),
    RowCheck(
        "one_end_token",
        "The end token occurs exactly once, unless the token limit came first.",
        structure.one_end_token,
    ),
    RowCheck(
        "no_think_open",
        "The answer opens a reasoning only at its start, where the chat format leaves the opening to the model.",
        structure.no_think_open,
    ),
    RowCheck(
        "round_trip",
        "Decoding the answer and encoding it again gives the same tokens, except for a small share.",
        structure.round_trip,
    ),
    RowCheck(
        "reasoning_not_empty",
        "Where the answer closes a reasoning, there is text before it.",
        structure.reasoning_not_empty,
    ),
    RowCheck(
        "ids_in_vocabulary",
        "Every id, of prompt and answer, is a row of the model's embedding.",
        sanity.ids_in_vocabulary,
    ),
    RowCheck(
        "prompt_start",
        "The prompt begins with the token that begins a text as often as the chat format has it: once, or not at all.",
        sanity.prompt_start,
    ),
    RowCheck(
        "special_ids",
        "The answer has only the special ids of answers in the chat format; no reserved, unnamed or prompt-only one.",
        sanity.special_ids,
    ),
    RowCheck(
        "segments",
        "The segments cover the answer without gaps; each structural id is a segment, and no text segment holds one.",
        sanity.segments,
    ),
    RowCheck(
        "valid_utf8",
        "The bytes of the answer's tokens are UTF-8 (an answer cut by the token limit may end inside a character).",
        sanity.valid_utf8,
    ),
    RowCheck(
        "replacement_characters",
        "The answer has no U+FFFD, with which servers replace bytes that they cannot decode.",
        sanity.replacement_characters,
    ),
    RowCheck(
        "control_characters",
        "The answer has no control characters except tabs and line ends.",
        sanity.control_characters,
    ),
    RowCheck(
        "provider_policy",
        "The policy admits the provider that answered, and its number format.",
        provenance.provider_policy,
    ),
    RowCheck(
        "model_name",
        "The configuration admits the model that answered, where it names any.",
        provenance.model_name,
    ),
    RowCheck("answer_error", "The provider answered without an error.", provenance.answer_error),
    RowCheck("rejected", "The ids of the answer could be rebuilt.", provenance.rejected),
    RowCheck("truncated", "The model ended the answer itself; the token limit did not.", provenance.truncated),
    RowCheck("content_filter", "No content filter cut the answer.", provenance.content_filter),
    RowCheck("refusal", "The model does what is asked; it does not refuse.", provenance.refusal),
    RowCheck(
        "empty_content",
        "The answer says something after the reasoning: text, or a tool call.",
        provenance.empty_content,
    ),
    RowCheck(
        "expect_reasoning",
        "The answer has the reasoning that the dataset requires, or none where it forbids it.",
        provenance.expect_reasoning,
    ),
    RowCheck(
        "expect_tool_calls",
        "The answer has the tool calls that the dataset requires, or none where it forbids them.",
        provenance.expect_tool_calls,
    ),
    RowCheck(
        "tool_markup",
        "The tool tokens have the order of the chat format: section, calls with arguments, end of section.",
        tools.tool_markup,
    ),
    RowCheck("tool_json", "The arguments of every tool call are a JSON object.", tools.tool_json),
    RowCheck("tool_name", "Every tool call names a function that the request offered.", tools.tool_name),
    RowCheck(
        "tool_schema",
        "The arguments of every tool call are valid against the schema that the request offered.",
        tools.tool_schema,
    ),
    RowCheck(
        "tool_ids",
        "The id of every call has the target's form, and its number continues those of the conversation.",
        tools.tool_ids,
    ),
    RowCheck(
        "count_difference",
        "The number of rebuilt tokens is the number billed, except for a small difference.",
        billing.count_difference,
    ),
    RowCheck(
        "prompt_count",
        "The prompt has as many tokens as were billed for it, but for what the provider adds to all. Prompts without a "
        "bill are not seen.",
        billing.prompt_count,
    ),
    RowCheck(
        "reasoning_count",
        "Where the provider reports a number of reasoning tokens, as many come before the think-close token.",
        billing.reasoning_count,
    ),
    RowCheck(
        "cost", "The cost is the number of tokens times a price of the provider, where prices are known.", billing.cost
    ),
    RowCheck(
        "token_loop",
        "No token and no phrase occurs many times in succession. Repetitions that differ by a number are not seen.",
        degeneration.token_loop,
    ),
    RowCheck(
        "repeated_ngrams",
        "Only a small share of the answer's n-grams repeat an earlier one.",
        degeneration.repeated_ngrams,
    ),
    RowCheck(
        "compression", "The answer's text does not compress far better than other text.", degeneration.compression
    ),
    RowCheck(
        "language",
        "Reasoning and answer are each written in scripts that the prompt uses; languages of one script are not told "
        "apart.",
        degeneration.language,
    ),
    RowCheck(
        "contamination",
        "No message of the prompt is or holds a held-out evaluation prompt, if those are given, whatever its case, "
        "punctuation and layout; prompt and answer share few n-grams with them. A paraphrase or a translation is not "
        "seen.",
        contamination.contamination,
    ),
    DatasetCheck(
        "duplicate_prompts",
        "No other row has the same prompt.",
        "prompt",
        duplicates.prompt_hashes,
        duplicates.duplicate_prompts,
    ),
    DatasetCheck(
        "duplicate_completions",
        "No other row has the same answer.",
        "completion",
        duplicates.completion_hashes,
        duplicates.duplicate_completions,
    ),
    DatasetCheck(
        "near_duplicates",
        "No other row has almost the same answer, by the share of common n-grams that MinHash estimates.",
        "signature",
        duplicates.signatures,
        duplicates.near_duplicates,
    ),
)
"""Every check: its name, the sentence that reports print, and its functions."""

BY_NAME = {check.name: check for check in CHECKS}
