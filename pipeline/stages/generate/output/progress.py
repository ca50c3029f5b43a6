"""What a run shows of itself: a progress bar on a terminal, a line now and then elsewhere. On stderr, and nowhere else."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pipeline.core.process.messages import tell
from pipeline.stages.generate.limits.money import to_usd

_LINE_EVERY = 10.0
"""Seconds between lines where there is no terminal."""


class Watch:
    """Counts what happens in a run, and shows it."""

    def __init__(self, total: int, cached: int) -> None:
        self.total = total
        self.cached = cached
        self.answered = 0
        self.failed: Counter[str] = Counter()
        self.retried = 0
        self.may_pay_twice = 0
        self.outside = 0
        self.tokens = 0
        self.pico = 0
        self.uncertain_pico = 0
        self.in_flight = 0
        self.waiting = 0
        """Prompts that failed and wait to be asked again."""
        self.last_failure = ""
        """Why the last of them does."""
        self.started = time.monotonic()
        self.last_answer = self.started
        self._last_line = self.started
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "Watch":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.text import Text

            watch = self

            class Display(Progress):
                """The bar, and below it a line of facts."""

                def get_renderables(self) -> Iterator[Any]:
                    yield self.make_tasks_table(self.tasks)
                    yield Text(watch.facts(), no_wrap=True, overflow="ellipsis")

            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Display(*columns, console=Console(stderr=True), auto_refresh=False, expand=True)
            self._task = self._bar.add_task("generate", total=self.total, completed=self.cached)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.in_flight = 0
        if self._bar is not None:
            self.tick()
            self._bar.stop()

    def say(self, text: str) -> None:
        """Show one line for people."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            tell(text)

    def tick(self) -> None:
        """Refresh what is shown."""
        if self._bar is not None:
            self._bar.update(self._task, completed=self.cached + self.answered + self.failed.total())
            self._bar.refresh()
        elif time.monotonic() - self._last_line >= _LINE_EVERY:
            self._last_line = time.monotonic()
            done = self.cached + self.answered + self.failed.total()
            tell(f"generate: {done}/{self.total} | {self.facts()}{self._left(done)}")

    def rate(self) -> float:
        """Answers a second since the start."""
        return self.answered / max(1e-9, time.monotonic() - self.started)

    def facts(self) -> str:
        """Rate, cost, tokens and errors, on one line."""
        uncertain = f" + up to ${to_usd(self.uncertain_pico):.4f}" if self.uncertain_pico else ""
        errors = self.failed.total()
        waiting = f" | {self.patience()}" if self.waiting else ""
        return (
            f"{self.rate():.1f}/s | ${to_usd(self.pico):.4f}{uncertain} | {self.tokens:,} tokens | {errors} failed, {self.retried} retried"
            f" | {self.in_flight} in flight{waiting}"
        )

    def patience(self) -> str:
        """Say how many prompts wait to be asked again, and why the last of them does."""
        return f"{self.waiting} wait to be asked again, the last for {self.last_failure}"

    def _left(self, done: int) -> str:
        rate = self.rate()
        return f" | {(self.total - done) / rate:.0f} s left" if rate > 0 and done < self.total else ""
