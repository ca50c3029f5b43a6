"""Number types, devices and CPU threads that a target runs with."""

import torch

from pipeline.core.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def use_threads(threads: int | None) -> None:
    """Fix the number of CPU threads: sums are split by it, so the last bit of a result may depend on it."""
    if threads is not None:
        torch.set_num_threads(threads)


def usable_device(name: str) -> torch.device:
    """Return the device of that name.

    Raises:
        ConfigError: this machine does not have it.

    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {name!r} cannot be used here: {str(error).splitlines()[0]}; set extract.device, train.device and "
            "evaluate.device"
        ) from error
    return device
