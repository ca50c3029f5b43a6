"""Progress of a run on stderr: a bar on a terminal, otherwise a line from time to time."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pipeline.core.process.messages import tell
from pipeline.stages.generate.limits.money import to_usd

_LINE_EVERY = 10.0
"""Seconds between lines where there is no terminal."""


class RunProgress:
    """Counts the events of a run, and shows them."""

    def __init__(self, total: int, cached: int) -> None:
        self.total = total
        self.cached = cached
        self.answered = 0
        self.failed: Counter[str] = Counter()
        self.retried = 0
        self.may_pay_twice = 0
        self.outside_policy = 0
        self.tokens = 0
        self.pico = 0
        self.uncertain_pico = 0
        self.in_flight = 0
        self.waiting = 0
        """Prompts that failed and wait to be asked again."""
        self.last_failure = ""
        """Message of the last failure among them."""
        self.started = time.monotonic()
        self.last_answer = self.started
        self._last_line = self.started
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "RunProgress":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.text import Text

            progress = self

            class Display(Progress):
                """Shows the bar, and below it a line of facts."""

                def get_renderables(self) -> Iterator[Any]:
                    yield self.make_tasks_table(self.tasks)
                    yield Text(progress.facts(), no_wrap=True, overflow="ellipsis")

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
        """Show one line of text."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            tell(text)

    def tick(self) -> None:
        """Refresh the display."""
        if self._bar is not None:
            self._bar.update(self._task, completed=self.cached + self.answered + self.failed.total())
            self._bar.refresh()
        elif time.monotonic() - self._last_line >= _LINE_EVERY:
            self._last_line = time.monotonic()
            done = self.cached + self.answered + self.failed.total()
            tell(f"generate: {done}/{self.total} | {self.facts()}{self._time_left(done)}")

    def rate(self) -> float:
        """Return the answers a second since the start."""
        return self.answered / max(1e-9, time.monotonic() - self.started)

    def facts(self) -> str:
        """Return rate, cost, tokens and errors, on one line."""
        uncertain = f" + up to ${to_usd(self.uncertain_pico):.4f}" if self.uncertain_pico else ""
        errors = self.failed.total()
        waiting = f" | {self.waiting_prompts()}" if self.waiting else ""
        return (
            f"{self.rate():.1f}/s | ${to_usd(self.pico):.4f}{uncertain} | {self.tokens:,} tokens | {errors} failed, "
            f"{self.retried} retried | {self.in_flight} in flight{waiting}"
        )

    def waiting_prompts(self) -> str:
        """Return how many prompts wait to be asked again, and why the last of them does."""
        return f"{self.waiting} wait to be asked again, the last for {self.last_failure}"

    def _time_left(self, done: int) -> str:
        rate = self.rate()
        return f" | {(self.total - done) / rate:.0f} s left" if rate > 0 and done < self.total else ""
