"""Headless Chromium, controlled over its debugging pipe: no driver, no port, no library.

The protocol is the Chrome DevTools Protocol with `--remote-debugging-pipe`: JSON messages, each ended by a NUL. The
browser reads them from file descriptor 3 and writes them to 4.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.polling import TIMEOUT_S, wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Move the pipes to the browser's descriptors, and become the browser; a shell may refuse descriptors above 9."""


class Browser:
    """One page of its own browser. Use it as a context manager."""

    def __init__(self, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        assert CHROMIUM is not None
        self._profile = tempfile.mkdtemp(prefix="aerie-chromium-")
        read_end, self._write = os.pipe()
        self._read, write_end = os.pipe()
        command = [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ]
        command += [
            f"--user-data-dir={self._profile}",
            f"--window-size={width},{height}",
            "--disable-background-networking",
            "about:blank",
        ]
        launcher = [sys.executable, "-c", _LAUNCH, str(read_end), str(write_end), *command]
        self._process = subprocess.Popen(
            launcher, pass_fds=(read_end, write_end), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(read_end)
        os.close(write_end)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        try:
            self._attach(width, height, dark=dark)
        except BaseException:
            self.__exit__()
            raise

    def _attach(self, width: int, height: int, *, dark: bool) -> None:
        wait_until(lambda: bool(self._pages()))  # a browser answers before it has opened its first page
        self._session = self.call("Target.attachToTarget", targetId=self._pages()[0], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        self.call("Performance.enable", timeDomain="threadTicks")
        if dark:
            self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def _pages(self) -> list[str]:
        targets = self.call("Target.getTargets")["targetInfos"]
        return [target["targetId"] for target in targets if target["type"] == "page"]

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise AssertionError(
                    f"Chromium wrote nothing for {TIMEOUT_S:g} s, or ended (exit code {self._process.poll()})"
                )
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        received: dict[str, Any] = json.loads(message)
        return received

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; events that arrive meanwhile are kept in `events`."""
        self._number += 1
        message = {
            "id": self._number,
            "method": method,
            "params": params,
            **({"sessionId": self._session} if self._session else {}),
        }
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, path: Path) -> None:
        """Open a file and wait until it has loaded and been painted."""
        navigation = self.call("Page.navigate", url=path.resolve().as_uri())
        loader = navigation["loaderId"]  # the load event of the blank page may come late, and has another loader
        while not any(self._has_loaded(event, loader) for event in self.events):
            self.events.append(self._receive())
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def worked(self) -> float:
        """Return the CPU seconds of the page's thread: parsing, layout, scripts and painting."""
        metrics = self.call("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime"))

    @staticmethod
    def _has_loaded(event: dict[str, Any], loader: str) -> bool:
        params = event.get("params", {})
        return event.get("method") == "Page.lifecycleEvent" and (params["name"], params["loaderId"]) == ("load", loader)

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def key(self, key: str, code: int) -> None:
        """Press and release a key."""
        text = "\r" if key == "Enter" else ""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path, *, top: int = 0, height: int | None = None, width: int = 1200) -> None:
        """Save a picture of the page, or of a part of it."""
        clip = {"x": 0, "y": top, "width": width, "height": height or 900, "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """Return the errors and warnings of the console and the log, and every exception."""
        complaints = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                complaints.append(str(params["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                complaints.append(str(params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                complaints.append(params["entry"]["text"])
        return complaints

    def requests(self) -> list[str]:
        """Return the addresses that the page requested."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
