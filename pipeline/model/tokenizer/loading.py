"""The only loader of tokenizers: from a target's section to its tokenizer."""

from pipeline.formats.schema.target import TargetSpec
from pipeline.model.tokenizer.backend import TokenizerBackend
from pipeline.model.tokenizer.splintr_backend import SplintrBackend
from pipeline.model.tokenizer.tiktoken_backend import TiktokenBackend
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.model.tokenizer.transformers_backend import TransformersBackend


def load_tokenizer(spec: TargetSpec) -> Tokenizer:
    """Load a target's tokenizer, without checking it against the special-token map.

    Raises:
        TokenizerError: it cannot be loaded.

    """
    backend: TokenizerBackend
    if spec.tokenizer.backend == "splintr":
        backend = SplintrBackend(spec.tokenizer)
    elif spec.tokenizer.backend == "tiktoken":
        backend = TiktokenBackend(spec.tokenizer, spec.special_tokens)
    else:
        backend = TransformersBackend(spec.tokenizer, spec.revision, trust_remote_code=spec.trust_remote_code)
    return Tokenizer(spec.tokenizer, backend, spec.vocab_size)
