"""A local rank file in tiktoken's format; the special tokens come from the target's map."""

from pathlib import Path

from pipeline.core.errors import TokenizerError
from pipeline.formats.schema.target import TokenizerSpec
from pipeline.model.tokenizer.backend import ListBackend


class TiktokenBackend(ListBackend):
    """A rank file with its split pattern. A special token whose id has a rank is ordinary text, so it is left out."""

    def __init__(self, spec: TokenizerSpec, special_tokens: dict[str, int]) -> None:
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe

        if not spec.pattern:
            raise TokenizerError("target.tokenizer.pattern is missing: the tiktoken backend needs the split pattern")
        if not Path(spec.name).is_file():
            raise TokenizerError(f"target.tokenizer.name {spec.name}: this rank file does not exist")
        try:
            ranks = load_tiktoken_bpe(spec.name)
            encoding = tiktoken.Encoding(spec.name, pat_str=spec.pattern, mergeable_ranks=ranks, special_tokens={})
        except (OSError, ValueError) as error:
            raise TokenizerError(
                f"target.tokenizer.name {spec.name}: not a tiktoken rank file (each line holds a base64 token and its "
                f"rank), or target.tokenizer.pattern is not a valid pattern: {error}"
            ) from error
        self._encoding = encoding
        self._bytes = {token: token_bytes for token_bytes, token in ranks.items()}
        self.special_ids = {text: token for text, token in special_tokens.items() if token not in self._bytes}

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` with special tokens off."""
        ids: list[int] = self._encoding.encode_ordinary(text)
        return ids

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a ranked token; empty for any other id."""
        return bytes(self._bytes.get(token, b""))
