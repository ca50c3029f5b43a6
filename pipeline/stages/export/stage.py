"""The `export` stage: the drafter in the layouts of SGLang and vLLM, with a model card."""

from pathlib import Path

from pipeline.core.errors import ArtifactError
from pipeline.core.files.atomic import write_text, writing_folder
from pipeline.core.files.json_file import read_json, read_model, write_json
from pipeline.core.files.tensors import load_tensors, save_tensors
from pipeline.core.sections import Section
from pipeline.drafter.checkpoint import CONFIG, WEIGHTS, check_tensors
from pipeline.drafter.config import DrafterConfig
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.weights.devices import DTYPES
from pipeline.stages.export.card import model_card
from pipeline.stages.export.layouts import config_for_sglang, config_for_vllm, tensors_for_sglang, tensors_for_vllm


class Config(Section):
    """Empty: the checkpoint has everything."""


def run(config: Config, *, checkpoint: Path, eval: Path, record: Path, export: Path) -> None:  # noqa: A002
    """Write `sglang/`, `vllm/` and `README.md`.

    Raises:
        ArtifactError: the checkpoint or the evaluation's report is damaged.

    """
    del config
    shape = read_model(checkpoint / CONFIG, DrafterConfig)
    target = read_model(record, TargetRecord)
    measured = read_json(eval)
    tensors = load_tensors(checkpoint / WEIGHTS)
    check_tensors(shape, tensors, str(checkpoint / WEIGHTS))
    if (dtype := DTYPES.get(shape.training.get("dtype", ""))) is None:
        raise ArtifactError(
            f"{checkpoint / CONFIG}: training.dtype is {shape.training.get('dtype')!r}; "
            f"one of {sorted(DTYPES)} is needed: run `dvc repro train`"
        )
    try:
        if int(measured["draft_tokens"]) < 1:
            raise ValueError(f"draft_tokens is {measured['draft_tokens']}")
        card = model_card(shape, target, measured)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(
            f"{eval}: is not a whole report of an evaluation ({error!r}): delete it and run `dvc repro evaluate`"
        ) from error
    with writing_folder(export) as folder:
        save_tensors(folder / "sglang" / WEIGHTS, tensors_for_sglang(tensors, dtype), {"format": "pt"})
        write_json(folder / "sglang" / CONFIG, config_for_sglang(shape, target, dtype))
        save_tensors(folder / "vllm" / WEIGHTS, tensors_for_vllm(tensors, dtype), {"format": "pt"})
        write_json(folder / "vllm" / CONFIG, config_for_vllm(shape, target, dtype, measured["draft_tokens"]))
        write_text(folder / "README.md", card)
