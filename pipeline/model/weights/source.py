"""The place that a target's weights come from: a checkpoint folder, or a hub model at a pinned revision."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import ArtifactError, ConfigError
from pipeline.core.files.digests import sha256_folder
from pipeline.core.files.json_file import read_json, to_json
from pipeline.core.process.garbage_collection import no_collector


@dataclass(frozen=True, slots=True)
class WeightsSource:
    """A checkpoint folder or a hub model."""

    name: str
    """Folder, or hub id."""
    revision: str | None = None
    trust_remote_code: bool = False
    sha256: str = ""
    """Digest of the folder's files, or of the hub id and revision."""

    def options(self) -> dict[str, Any]:
        """Return the arguments for transformers' `from_pretrained`."""
        return {"revision": self.revision, "trust_remote_code": self.trust_remote_code}


def find_source(folder: Path) -> WeightsSource:
    """Return the source of the weights in ``folder``: a checkpoint, or a `target.json` that names one elsewhere.

    Raises:
        ArtifactError: the folder holds neither.
        ConfigError: `target.json` names a hub model without a revision.

    """
    if (pointer := folder / "target.json").is_file():
        named = read_json(pointer)
        if named.get("revision") is None and not Path(named["model"]).is_dir():
            raise ConfigError(
                f"target.model is {named['model']!r}, which is not a local folder and so names a hub model, and "
                "target.revision is null: the hub's files may change; set target.revision to a commit, or target.model "
                "to a folder"
            )
        digest = hashlib.sha256(to_json([named["model"], named.get("revision")])).hexdigest()
        return WeightsSource(named["model"], named.get("revision"), bool(named.get("trust_remote_code")), digest)
    if not (folder / "config.json").is_file():
        raise ArtifactError(
            f"{folder}: has neither config.json (a checkpoint) nor target.json (the name of one); run "
            "`dvc repro target`"
        )
    return WeightsSource(str(folder), sha256=sha256_folder(folder))


@no_collector()
def read_config(source: WeightsSource) -> Any:
    """Return the transformers config of a target; its ``.get_text_config()`` is the text model's.

    Raises:
        ArtifactError: it cannot be read.

    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source.name, **source.options())
    except (OSError, ValueError, ImportError) as error:
        raise ArtifactError(f"{source.name}: transformers cannot read this model's config: {error}") from error
