"""A target by name, for commands that work on files outside the build."""

from pathlib import Path

from pipeline.core.files.json_file import read_model
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.special_tokens import make_record, open_tokenizer
from pipeline.model.tokenizer.loading import load_tokenizer
from pipeline.model.tokenizer.tokenizer import Tokenizer


def open_target(name: str) -> tuple[TargetRecord, Tokenizer]:
    """Return the checked record and the tokenizer of a target.

    Args:
        name: of a file under conf/target/, without .yaml; or a path to a fingerprint.json.

    Raises:
        ConfigError: there is no such target.
        TokenizerError: its special-token map does not fit its tokenizer.

    """
    if name.endswith(".json"):
        record = read_model(Path(name), TargetRecord)
        return record, open_tokenizer(record)
    from pipeline.project.compose import target_section  # Hydra is slow to import, and stages never need it

    section = target_section(name)
    tokenizer = load_tokenizer(section)
    return make_record(section, tokenizer), tokenizer
