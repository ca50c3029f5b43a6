"""The sections `audit`, with one field for each check, and `datasets.<name>.expect`."""

from typing import Any, Literal

from pydantic import Field, model_validator

from pipeline.core.sections import Section

Expectation = Literal["required", "optional", "forbidden"]
Level = Literal["error", "warn", "info", "off"]


class ExpectSection(Section):
    """Properties that every answer of a dataset must have, may have or must not have."""

    reasoning: Expectation = "optional"
    tool_calls: Expectation = "optional"


class CheckSection(Section):
    """Settings that every check has."""

    severity: Level
    """error: leave the row out of training; warn, info: keep the row and count it; off: do not run the check."""
    max_share: float | None = Field(None, ge=0, le=1)
    """Largest share of rows with this finding; above it the dataset fails. null sets no limit."""


class RoundTripSection(CheckSection):
    """Thresholds of `round_trip`."""

    max_rate: float = Field(0.05, ge=0, le=1)
    """Largest share of a row's tokens that may differ after decoding and encoding again."""


class DifferenceSection(CheckSection):
    """Thresholds of `count_difference` and `reasoning_count`; a finding exceeds both."""

    max_tokens: int = Field(16, ge=0)
    max_rate: float = Field(0.02, ge=0)
    """Share of the billed or counted tokens."""


class TokenPrice(Section):
    """A price in dollars per million tokens."""

    prompt: float = Field(ge=0)
    completion: float = Field(ge=0)


class CostSection(CheckSection):
    """Thresholds and prices of `cost`."""

    max_rate: float = Field(0.02, ge=0)
    """Largest difference, as a share of the expected cost."""
    prices: dict[str, TokenPrice] = Field(default_factory=dict)
    """Prices by provider. For others the prices count that their endpoints listed when they answered, where known."""


class ModelSection(CheckSection):
    """Settings of `model_name`."""

    admit: list[str] = Field(default_factory=list)
    """Model names as the answers have them; empty admits any."""


class RefusalSection(CheckSection):
    """Settings of `refusal`."""

    openings: list[str] = Field(default_factory=list)
    """First words of further refusals, beside those that the check knows; case and kind of apostrophe are ignored."""


class CountSection(CheckSection):
    """A limit on how often something may occur in a row."""

    max_count: int = Field(0, ge=0)


class LoopSection(CheckSection):
    """Thresholds of `token_loop`."""

    max_run: int = Field(64, ge=1)
    """Most times in succession that one token may occur, or a phrase that is not prose."""
    max_phrases: int = Field(16, ge=1)
    """Most times in succession that a phrase of prose may occur."""
    max_covered: float = Field(0.5, ge=0, le=1)
    """Largest share of a reasoning, or of the rest of an answer, that a phrase of prose may cover three times over."""
    min_tokens: int = Field(64, ge=1)
    """Largest number of tokens, all repetitions together, that a loop of several tokens may have."""


class RepeatSection(CheckSection):
    """Thresholds of `repeated_ngrams`."""

    n: int = Field(16, ge=1)
    max_rate: float = Field(0.5, ge=0, le=1)
    """Largest share of n-grams that repeat an earlier one of the same answer."""
    min_tokens: int = Field(64, ge=1)
    """The check skips shorter answers."""


class CompressionSection(CheckSection):
    """Thresholds of `compression`."""

    max_ratio: float = Field(10.0, gt=1)
    """Largest ratio of bytes before and after LZ4, a fast method: prose has a ratio of 1.5, code of 2 to 4."""
    min_bytes: int = Field(512, ge=1)


class LanguageSection(CheckSection):
    """Thresholds of `language`."""

    min_letters: int = Field(20, ge=1)
    min_share: float = Field(0.5, ge=0, le=1)
    """Smallest share of the answer's letters at which a script counts as the answer's."""
    max_prompt_share: float = Field(0.02, ge=0, le=1)
    """Smallest share of the prompt's letters at which the prompt counts as using the script."""


class DuplicateSection(CheckSection):
    """Thresholds of `duplicate_completions`."""

    min_tokens: int = Field(16, ge=1)
    """The check skips shorter answers."""


class NearDuplicateSection(DuplicateSection):
    """Thresholds of `near_duplicates`."""

    min_tokens: int = Field(32, ge=1)
    n: int = Field(5, ge=1)
    min_similarity: float = Field(0.8, ge=0, le=1)
    permutations: int = Field(64, ge=8, le=1024)
    bands: int = Field(16, ge=1)
    """Divides ``permutations``. More bands find pairs that are less alike, and take longer."""

    @model_validator(mode="after")
    def _bands_divide(self) -> "NearDuplicateSection":
        if self.permutations % self.bands:
            raise ValueError(f"bands must divide permutations; found {self.bands} and {self.permutations}")
        return self


class ContaminationSection(CheckSection):
    """Thresholds of `contamination`."""

    n: int = Field(13, ge=2)
    """Number of words, and of ids, in an n-gram."""
    max_rate: float = Field(0.2, ge=0, le=1)
    """Largest share of held-out n-grams among those of a message or an answer."""


class GateSection(Section):
    """Thresholds for the dataset as a whole."""

    max_error_rate: float = Field(0.2, ge=0, le=1)
    """Largest share of rows with an error among the rows that hold ids."""
    min_accepted: int = Field(1, ge=0)
    """Smallest number of rows that must be left for training."""
    admit: list[str] = Field(default_factory=list)
    """Reasons for which a flagged row may still be trained on. A code also admits itself with details after a colon."""


def _error() -> CheckSection:
    return CheckSection(severity="error")


def _warn() -> CheckSection:
    return CheckSection(severity="warn")


class AuditSection(Section):
    """The thresholds of the dataset, and one entry for each check."""

    gate: GateSection = GateSection()
    ends_with_end_token: CheckSection = Field(default_factory=_error)
    one_think_close: CheckSection = Field(default_factory=_error)
    think_close_position: CheckSection = Field(default_factory=_error)
    one_end_token: CheckSection = Field(default_factory=_error)
    no_think_open: CheckSection = Field(default_factory=_error)
    round_trip: RoundTripSection = RoundTripSection(severity="error")
    reasoning_not_empty: CheckSection = Field(default_factory=_error)
    ids_in_vocabulary: CheckSection = Field(default_factory=_error)
    prompt_start: CheckSection = Field(default_factory=_error)
    special_ids: CheckSection = Field(default_factory=_error)
    segments: CheckSection = Field(default_factory=_error)
    valid_utf8: CheckSection = Field(default_factory=_warn)
    replacement_characters: CountSection = CountSection(severity="warn")
    control_characters: CountSection = CountSection(severity="warn")
    provider_policy: CheckSection = Field(default_factory=_error)
    model_name: ModelSection = ModelSection(severity="error")
    answer_error: CheckSection = Field(default_factory=_error)
    rejected: CheckSection = Field(default_factory=_warn)
    truncated: CheckSection = Field(default_factory=_warn)
    content_filter: CheckSection = Field(default_factory=_error)
    refusal: RefusalSection = RefusalSection(severity="warn")
    empty_content: CheckSection = Field(default_factory=_error)
    expect_reasoning: CheckSection = Field(default_factory=_error)
    expect_tool_calls: CheckSection = Field(default_factory=_error)
    tool_markup: CheckSection = Field(default_factory=_error)
    tool_json: CheckSection = Field(default_factory=_error)
    tool_name: CheckSection = Field(default_factory=_error)
    tool_schema: CheckSection = Field(default_factory=_warn)
    tool_ids: CheckSection = Field(default_factory=_warn)
    count_difference: DifferenceSection = DifferenceSection(severity="warn")
    prompt_count: CheckSection = Field(default_factory=_warn)
    reasoning_count: DifferenceSection = DifferenceSection(severity="info")
    cost: CostSection = CostSection(severity="warn")
    token_loop: LoopSection = LoopSection(severity="error")
    repeated_ngrams: RepeatSection = RepeatSection(severity="warn")
    compression: CompressionSection = CompressionSection(severity="warn")
    language: LanguageSection = LanguageSection(severity="info")
    contamination: ContaminationSection = ContaminationSection(severity="warn")
    duplicate_prompts: CheckSection = Field(default_factory=_warn)
    duplicate_completions: DuplicateSection = DuplicateSection(severity="warn")
    near_duplicates: NearDuplicateSection = NearDuplicateSection(severity="info")

    @model_validator(mode="before")
    @classmethod
    def _known_checks(cls, values: Any) -> Any:
        """Refuse unknown checks with a message that names the known ones."""
        if isinstance(values, dict) and (unknown := sorted(set(map(str, values)) - set(cls.model_fields))):
            known = sorted(set(cls.model_fields) - {"gate"})
            raise ValueError(f"unknown checks {unknown}; known are {known}")
        return values

    def check(self, name: str) -> CheckSection:
        """Return the settings of one check."""
        section: CheckSection = getattr(self, name)
        return section


def laid_over(shared: Any, own: Any) -> Any:
    """Return ``shared`` with the values of ``own`` laid over it, key by key."""
    if isinstance(shared, dict) and isinstance(own, dict):
        return {**shared, **{key: laid_over(shared.get(key), value) for key, value in own.items()}}
    return own
