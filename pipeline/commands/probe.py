"""`python -m pipeline probe --target NAME`: what a target's tokenizer does with its special tokens, and at the seams between segments.

A pipeline that places markers by id and encodes each segment alone must know when that differs from encoding the whole text.
"""

import argparse
import sys

from pipeline.core.errors import TokenizerError
from pipeline.formats.schema.target import TargetSpec
from pipeline.model.special_tokens import special_token_faults
from pipeline.model.tokenizer.loading import load_tokenizer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.compose import target_section

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
"""Reasoning and content of the answer whose round trip is shown."""


def special_lines(spec: TargetSpec, tokenizer: Tokenizer) -> list[str]:
    """Show each special token: its id, what the tokenizer calls that id, and what becomes of its name inside ordinary text."""
    lines = []
    for text, token in sorted(spec.special_tokens.items(), key=lambda item: item[1]):
        back = "ok" if tokenizer.special_texts.get(token) == text else repr(tokenizer.show(token))
        as_text = tokenizer.encode(text)
        whole = "comes back" if tokenizer.decode_bytes(as_text) == text.encode() else "does not come back"
        lines.append(f"  {token:>7}  {text:<32} id to text: {back:<6}  as ordinary text: {len(as_text)} ids, {whole}")
    return lines


def answer_lines(spec: TargetSpec, tokenizer: Tokenizer) -> list[str]:
    """Round trip of a whole answer, markers by id, and what encoding its text in one piece would give instead."""
    roles = spec.roles
    close = [] if roles.think_close is None else [spec.special_tokens[roles.think_close]]
    ids = [*tokenizer.encode(ANSWER[0]), *close, *tokenizer.encode(ANSWER[1]), spec.special_tokens[roles.end]]
    shown = "".join(map(tokenizer.show, ids))
    wanted = f"{ANSWER[0]}{roles.think_close or ''}{ANSWER[1]}{roles.end}"
    naive = tokenizer.encode(wanted)
    return [
        f"  by segments: {len(ids)} ids, {'comes back whole' if shown == wanted else f'comes back as {shown!r}'}",
        f"  as one ordinary text: {len(naive)} ids, {'the same' if naive == ids else 'not the same: the markers became text'}",
    ]


def seam_lines(tokenizer: Tokenizer) -> list[str]:
    """Two texts encoded apart and as one: where the ids differ, a seam must be placed as the model placed it."""
    lines = []
    for left, right in SEAMS:
        apart, joined = [*tokenizer.encode(left), *tokenizer.encode(right)], tokenizer.encode(left + right)
        verdict = "no effect" if apart == joined else f"joined {joined}"
        lines.append(f"  {left!r:>18} + {right!r:<12} apart {apart}  {verdict}")
    return lines


def faults_of(spec: TargetSpec, tokenizer: Tokenizer) -> list[str]:
    """Everything that must stop a build: the map against the tokenizer, and the tokenizer against its pinned digest."""
    faults = special_token_faults(spec, tokenizer)
    if spec.tokenizer.sha256 not in (None, tokenizer.sha256()):
        faults.append(
            f"the tokenizer's digest is {tokenizer.sha256()}, expected {spec.tokenizer.sha256}: another vocabulary, or another way to cut text"
        )
    return faults


def main(argv: list[str]) -> None:
    """Print what the tokenizer does.

    Raises:
        ConfigError: no such target.
        TokenizerError: the map does not fit; everything is printed first.

    """
    parser = argparse.ArgumentParser(
        prog="python -m pipeline probe", description="Show what a target's tokenizer does."
    )
    parser.add_argument("--target", required=True, help="a file of conf/target/, without .yaml")
    spec = target_section(parser.parse_args(argv).target)
    tokenizer = load_tokenizer(spec)
    faults = faults_of(spec, tokenizer)
    inside = {text: token for text, token in spec.special_tokens.items() if 0 <= token < spec.vocab_size}
    checked = spec.model_copy(update={"special_tokens": inside})
    print(
        f"target {spec.name}: {spec.tokenizer.backend} {spec.tokenizer.name}, {spec.vocab_size:,} rows, digest {tokenizer.sha256()}"
    )
    print(
        f"special tokens ({len(spec.special_tokens)} named here, {len(tokenizer.special_ids)} known to the tokenizer):"
    )
    print("\n".join(special_lines(checked, tokenizer)))
    if not faults:
        print("an answer:", *answer_lines(spec, tokenizer), sep="\n")
    print("seams:", *seam_lines(tokenizer), sep="\n")
    if faults:
        sys.stdout.flush()
        listed = "\n  ".join(faults)
        raise TokenizerError(
            f"target {spec.name!r}: {len(faults)} faults:\n  {listed}\nCorrect conf/target/{spec.name}.yaml."
        )
    print("faults: none")
