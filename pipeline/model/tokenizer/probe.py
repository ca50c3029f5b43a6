"""A tokenizer's behaviour at special tokens and at the seams between segments, as text.

A pipeline that places markers by id and encodes each segment alone must know when that gives other ids than encoding
the whole text.
"""

from pipeline.formats.schema.target import TargetSpec
from pipeline.model.special_tokens import special_token_faults
from pipeline.model.tokenizer.tokenizer import Tokenizer

SEAMS = (
    ("42", "."),
    ("step by step", "\n\nThe"),
    ("some code here", "`"),
    ("Done.", "\n"),
    ("\n", "\nNext"),
    ("12", "34"),
    (" roll", "outs"),
)
"""Pairs of texts that are encoded apart and joined."""
ANSWER = ("I add 2 and 3.\n", "\n\nThe sum is `5`.")
"""Reasoning and content of the answer that is encoded and decoded."""


def probe_lines(spec: TargetSpec, tokenizer: Tokenizer, *, with_answer: bool) -> list[str]:
    """Return the whole report.

    Args:
        spec: the target's section, whose map may be wrong: ids outside the vocabulary are left out.
        tokenizer: the target's tokenizer.
        with_answer: show a whole answer, which needs a correct map.

    """
    in_vocabulary = {text: token for text, token in spec.special_tokens.items() if 0 <= token < spec.vocab_size}
    checked = spec.model_copy(update={"special_tokens": in_vocabulary})
    named, known = len(spec.special_tokens), len(tokenizer.special_ids)
    return [
        f"target {spec.name}: {spec.tokenizer.backend} {spec.tokenizer.name}, {spec.vocab_size:,} rows, "
        f"digest {tokenizer.sha256()}",
        f"special tokens ({named} named here, {known} known to the tokenizer):",
        *special_lines(checked, tokenizer),
        *(["an answer:", *answer_lines(spec, tokenizer)] if with_answer else []),
        "seams:",
        *seam_lines(tokenizer),
    ]


def special_lines(spec: TargetSpec, tokenizer: Tokenizer) -> list[str]:
    """Return a line for each special token: its id, the tokenizer's text of that id, its name as ordinary text."""
    lines = []
    for text, token in sorted(spec.special_tokens.items(), key=lambda item: item[1]):
        id_text = "ok" if tokenizer.special_texts.get(token) == text else repr(tokenizer.show(token))
        ids = tokenizer.encode(text)
        decoded = "comes back" if tokenizer.decode_bytes(ids) == text.encode() else "does not come back"
        lines.append(f"  {token:>7}  {text:<32} id to text: {id_text:<6}  as ordinary text: {len(ids)} ids, {decoded}")
    return lines


def answer_lines(spec: TargetSpec, tokenizer: Tokenizer) -> list[str]:
    """Encode an answer by segments with markers by id, and as one text; return a line for each way."""
    roles = spec.roles
    close = [] if roles.think_close is None else [spec.special_tokens[roles.think_close]]
    ids = [*tokenizer.encode(ANSWER[0]), *close, *tokenizer.encode(ANSWER[1]), spec.special_tokens[roles.end]]
    decoded = "".join(map(tokenizer.show, ids))
    text = f"{ANSWER[0]}{roles.think_close or ''}{ANSWER[1]}{roles.end}"
    text_ids = tokenizer.encode(text)
    return [
        f"  by segments: {len(ids)} ids, {'comes back whole' if decoded == text else f'comes back as {decoded!r}'}",
        f"  as one ordinary text: {len(text_ids)} ids, "
        f"{'the same' if text_ids == ids else 'not the same: the markers became text'}",
    ]


def seam_lines(tokenizer: Tokenizer) -> list[str]:
    """Return a line for each seam; where the joined text has other ids, the place of the seam matters."""
    lines = []
    for left, right in SEAMS:
        apart, joined = [*tokenizer.encode(left), *tokenizer.encode(right)], tokenizer.encode(left + right)
        effect = "no effect" if apart == joined else f"joined {joined}"
        lines.append(f"  {left!r:>18} + {right!r:<12} apart {apart}  {effect}")
    return lines


def tokenizer_faults(spec: TargetSpec, tokenizer: Tokenizer) -> list[str]:
    """Return all faults that must stop a build: in the special-token map, and in the digest of the tokenizer."""
    faults = special_token_faults(spec, tokenizer)
    if spec.tokenizer.sha256 not in (None, tokenizer.sha256()):
        faults.append(
            f"the tokenizer's digest is {tokenizer.sha256()}, expected {spec.tokenizer.sha256}: "
            "another vocabulary, or another way to cut text"
        )
    return faults
