"""Errors that the user can act on, as a tree.

A message names the file, line or id, the value found, the value expected, and the remedy.

AerieError                 exit code 2: bad usage or bad input
├── ConfigError            conf/, params.yaml or build/config.json
├── InputError             a file that the user brought: prompts, responses, tokens
├── ArtifactError          a file that a stage wrote: missing, cut short, of another version
├── TokenizerError         a tokenizer or a special-token map that must not be used
├── ProviderError          the API refuses, or cannot be reached
│   └── BudgetError        money or tokens ran out, and the config calls that a failure
├── EngineError            a serving engine cannot be reached, or returns other hidden states than requested
├── BusyError              another process holds the ledger
├── DiskError              the disk is full, or not writable
├── EvaluationError        speculative decoding gives other text than plain greedy decoding
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
    """A serving engine cannot be reached, has the wrong launch options, or returns other states than requested."""


class BusyError(AerieError):
    """Another live process holds a lock that this one needs."""


class DiskError(AerieError):
    """The disk is full, or a path cannot be written."""


class EvaluationError(AerieError):
    """Speculative decoding gave other text than plain greedy decoding."""


class GateError(AerieError):
    """The audit's verdict is no-go, so no later stage may run."""

    exit_code = 1
