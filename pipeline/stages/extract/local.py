"""The `transformers` backend: the target runs in this process."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import transformers

from pipeline.model.weights.ends import locate_ends
from pipeline.model.weights.target import Target, open_model
from pipeline.stages.extract.backend import States
from pipeline.stages.extract.config import ExtractSection
from pipeline.stages.extract.forward import can_pack, check_teacher, pack_attention, states
from pipeline.stages.extract.plan import InputRow


class LocalBackend:
    """The target's own forward pass over packed rows, or over padded ones if its attention does not allow packing."""

    engine = f"transformers {transformers.__version__}"
    confirms_layers = True
    padded = False
    by_row = False

    def __init__(self, settings: ExtractSection, model: Path, layer_ids: list[int]) -> None:
        self._settings, self._model, self._layer_ids = settings, model, layer_ids

    def start(self, probe: InputRow | None) -> Target:
        """Load the weights.

        Raises:
            ArtifactError: the checkpoint is missing or cannot be loaded, or training would not find embedding, norm and
                head in it.
            ConfigError: the device does not exist.
            InputError: the states are not what the head reads.

        """
        self._target = open_model(self._model, dtype=self._settings.compute_dtype, device=self._settings.device)
        locate_ends(self._target)
        self.padded = not can_pack(self._target)
        if not self.padded:
            pack_attention(self._target)
        if probe is not None:
            check_teacher(self._target, self._layer_ids, probe.token_ids, packed=not self.padded)
        return self._target

    def states(self, batches: Iterable[list[InputRow]]) -> Iterator[States]:
        """Yield the states of each batch from one forward pass."""
        for batch in batches:
            yield States(
                *states(self._target, self._layer_ids, [row.token_ids for row in batch], packed=not self.padded)
            )
