"""What can go wrong, as a tree. A message names the file, line or id, what was found, what was expected, and what to do.

AerieError                 exit code 2: bad usage or bad input
├── ConfigError            conf/, params.yaml or build/config.json
├── InputError             a file that the user brought: prompts, responses, tokens
├── ArtifactError          a file that a stage wrote: missing, cut short, of another version
├── TokenizerError         a tokenizer or a special-token map that must not be used
├── ProviderError          the API refuses, or cannot be reached
│   └── BudgetError        money or tokens ran out, and the config calls that a failure
├── EngineError            a serving engine cannot be reached, or gives other hidden states than those asked for
├── BusyError              another process holds the store
├── DiskError              the disk is full, or not writable
├── EvaluationError        speculative decoding does not write what the target itself would
└── GateError              exit code 1: the audit says no-go
"""


class AerieError(Exception):
    """The root of every error that the user can act on; shown without a traceback."""

    exit_code = 2


class ConfigError(AerieError):
    """The configuration is wrong; one message lists every mistake."""


class InputError(AerieError):
    """A file that the user brought is missing or malformed."""


class ArtifactError(AerieError):
    """A file that a stage should have written is missing, damaged, or of another version."""


class TokenizerError(AerieError):
    """The tokenizer or the special-token map contradicts itself or the target."""


class ProviderError(AerieError):
    """The provider refused the work as a whole, or could not be reached."""


class BudgetError(ProviderError):
    """The budget is spent and the config says that this is a failure."""


class EngineError(AerieError):
    """A serving engine cannot be reached, is launched otherwise than needed, or answers with something else than the states asked for."""


class BusyError(AerieError):
    """Another live process holds what this one needs."""


class DiskError(AerieError):
    """The disk is full, or a path cannot be written."""


class EvaluationError(AerieError):
    """Speculative decoding wrote something else than plain greedy decoding."""


class GateError(AerieError):
    """The audit's verdict is no-go, so nothing after it may run."""

    exit_code = 1
