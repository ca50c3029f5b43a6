"""What a training run says while it runs; times go to the terminal only, since they differ each time."""

import time

from pipeline.stages.train.learner import StepResult

_EVERY_S = 10.0


class ProgressPrinter:
    """Prints where training stands, at most every ten seconds."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._begun = self._said = time.monotonic()
        self._first: int | None = None

    def step(self, number: int, result: StepResult) -> None:
        """Take note of a step that was done, counted from 1."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._begun = number, now
        if now - self._said < _EVERY_S:
            return
        self._said = now
        pace = (now - self._begun) / max(1, number - self._first)
        accuracy = " ".join(f"{share:.3f}" for share in result.accuracy)
        left = pace * (self._steps - number) / 60
        print(
            f"train: step {number:,} of {self._steps:,}: loss {result.loss:.4f}, accuracy by draft {accuracy}, about {left:.0f} min left",
            flush=True,
        )
