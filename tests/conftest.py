"""Fixtures of all tests: the real Kimi-K2.5 vocabulary, the reported cases, and no network but loopback."""

import contextlib
import fcntl
import gc
import json
import os
import shutil
import socket
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from pipeline.core.process.garbage_collection import no_collector
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.targets import open_target
from tests.instant_stages import InstantBuild, built
from tests.workspace import DEFAULTS as DEFAULTS
from tests.workspace import ROOT as ROOT

if TYPE_CHECKING:
    from tests.stand_in import StandIn

DATA = ROOT / "tests" / "data"
"""Files that tests read; a missing one is a failure."""
SLOW = "\npytestmark = pytest.mark.slow\n"
SHARE = 1 if os.environ.get("AERIE_TESTS") == "all" else 5
"""The longest series try every fifth member; with AERIE_TESTS=all every member."""


settings.register_profile("aerie", deadline=None, derandomize=SHARE > 1, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("aerie")
"""Values of a property come from the same seed in every run, so that only a change of the code makes a run fail; with
AERIE_TESTS=all the seed differs each time. No deadline applies, so the result does not depend on the clock."""

LONGEST = ("test_default_build.py", "test_end_to_end.py")


def pytest_configure() -> None:
    """Limit torch, which is not loaded yet, to one thread in each process.

    Its threads wait for each other in busy loops, and the tests run as many processes as there are cores.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt the modules that are loaded here from garbage collection, which would scan torch again and again."""
    with no_collector():
        result = yield
    gc.freeze()
    return result


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files of slow tests unread if slow tests are deselected: most import torch, which alone takes seconds."""
    with_slow = config.getoption("markexpr") != "not slow"
    skipped = not with_slow and collection_path.suffix == ".py" and SLOW in collection_path.read_text("utf-8")
    return True if skipped else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the longest files, then the other files with slow tests, so that no core waits for one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.name not in LONGEST, item.path not in slow))


@pytest.fixture(scope="session", autouse=True)
def shipped_defaults() -> Iterator[None]:
    """Run every test in the copy of the shipped defaults, so that no test sees a user's edits of conf/ and params."""
    with contextlib.chdir(DEFAULTS):
        yield


@pytest.fixture(scope="session", autouse=True)
def only_loopback() -> Iterator[None]:
    """Refuse every connection that would leave this machine."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def check(address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test tried to reach {address}")

    def guarded(self: socket.socket, address: Any) -> None:
        check(address)
        connect(self, address)

    def guarded_ex(self: socket.socket, address: Any) -> int:
        check(address)
        return connect_ex(self, address)

    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", guarded)
    patch.setattr(socket.socket, "connect_ex", guarded_ex)
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def nothing_kept() -> Iterator[None]:
    """Switch off the reuse of rows, so that tests and the developer's builds do not share any.

    A test of reuse switches it on for its own folder.
    """
    patch = pytest.MonkeyPatch()
    patch.setenv("AERIE_REUSE", "off")
    yield
    patch.undo()


@pytest.fixture(scope="session")
def kimi() -> TargetRecord:
    """Kimi-K2.5's checked record."""
    return open_target("kimi_k25")[0]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Kimi-K2.5's real tokenizer."""
    return open_target("kimi_k25")[1]


@pytest.fixture(scope="session")
def instant_build(tmp_path_factory: pytest.TempPathFactory) -> InstantBuild:
    """A workspace of instant stages, built and committed. Do not change it; use `.copy(to)`."""
    return InstantBuild(once(tmp_path_factory, "instant", lambda folder: built(folder / "repository")) / "repository")


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> "StandIn":
    """A stand-in target that was trained for a second; see tests/stand_in.py."""
    from tests.stand_in import StandIn, make_stand_in  # torch, which most tests do without

    return StandIn.of(once(tmp_path_factory, "target", make_stand_in))


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Fill a folder once for all processes of a test run, and return it."""
    single_process = "PYTEST_XDIST_WORKER" not in os.environ
    folder = (factory.getbasetemp() if single_process else factory.getbasetemp().parent) / f"once-{name}"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder


def reported_cases(area: str) -> list[dict[str, Any]]:
    """Return the cases of an area that were made from public bug reports: `1` provider shapes, `2` token identity."""
    lines = (DATA / "reported_cases.jsonl").read_text("utf-8").split("\n")
    cases = [case for case in map(json.loads, filter(None, lines)) if case["area"].startswith(area)]
    assert cases, f"no case of area {area}"
    return cases
