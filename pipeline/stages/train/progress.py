"""Progress lines of a training run. Times go to the terminal only, since they differ each time."""

import time

from pipeline.stages.train.learner import StepResult

_EVERY_S = 10.0


class ProgressPrinter:
    """Prints step, loss and accuracy, at most every ten seconds."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._started = self._printed = time.monotonic()
        self._first: int | None = None

    def step(self, number: int, result: StepResult) -> None:
        """Record a finished step, counted from 1, and print if ten seconds have passed."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._started = number, now
        if now - self._printed < _EVERY_S:
            return
        self._printed = now
        pace = (now - self._started) / max(1, number - self._first)
        accuracy = " ".join(f"{share:.3f}" for share in result.accuracy)
        left = pace * (self._steps - number) / 60
        print(
            f"train: step {number:,} of {self._steps:,}: loss {result.loss:.4f}, accuracy by draft {accuracy}, "
            f"about {left:.0f} min left",
            flush=True,
        )
