"""Ids of the target's layers whose states a drafter reads.

The convention is `formats/schema/hidden.py`'s: id k is the input of layer k; id n (the number of layers) is the output
of the last layer, which the final norm reads.
"""

from pipeline.core.errors import ConfigError


def default_layers(num_layers: int) -> list[int]:
    """Return the layer ids that SGLang and vLLM read if a drafter's config names none."""
    return [2, num_layers // 2, num_layers - 3]


def auxiliary_layers(layers: list[int] | None, num_layers: int) -> list[int]:
    """Return the layer ids to take: the configured ones, or the engines' own.

    Raises:
        ConfigError: they are not three different ids in ascending order, or one is out of range.

    """
    chosen = default_layers(num_layers) if layers is None else layers
    where = f"extract.layers is {layers}" if layers is not None else f"extract.layers is null, which gives {chosen}"
    if len(chosen) != 3 or sorted(set(chosen)) != chosen:
        raise ConfigError(
            f"{where}: three different layer ids are needed, low to high; this target has {num_layers} layers: name "
            "them in conf/extract/"
        )
    if chosen[0] < 0 or chosen[-1] > num_layers:
        raise ConfigError(
            f"{where}: out of range; the target has layers 0 to {num_layers - 1}, and {num_layers} names the last "
            "layer's output"
        )
    return chosen
