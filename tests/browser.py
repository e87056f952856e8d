"""A headless Chromium for tests of pages, driven over its own pipe: no driver, no port.

`--remote-debugging-pipe` takes the DevTools protocol on descriptor 3 and answers on 4, each message
JSON and a zero byte. Where there is no Chromium, `found` returns None.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_S = 60.0
_START = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, wanted in zip(ours, (3, 4)):
    os.dup2(number, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe"),
)


def found() -> str | None:
    """Return the path of a browser."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Seen:
    """What a page did while it was open."""

    requests: list[str] = field(default_factory=list)
    """Addresses that it asked for, its own first."""
    complaints: list[str] = field(default_factory=list)
    """Of the console, of the page's policy, of scripts that failed."""


class Browser:
    """One browser with one page."""

    def __init__(self, path: str, home: Path) -> None:
        """Start it, with its files under `home`."""
        (theirs_in, self._out), (self._in, theirs_out) = os.pipe(), os.pipe()
        self._number, self._rest, self._events = 0, b"", list[dict[str, Any]]()
        self.seen = Seen()
        ends = [str(theirs_in), str(theirs_out)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *ends, path, *FLAGS, f"--user-data-dir={home}"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        """Open the page."""
        target = self.call("Target.createTarget", url="about:blank", session="")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True, session="")
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        """Return the browser."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End it and whatever it started."""
        with suppress(OSError):
            self.call("Browser.close", session="")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        """Return what the browser answers."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if session is None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            said = self._read()
            if said.get("id") == self._number:
                if "error" in said:
                    raise RuntimeError(f"{method}: {said['error']}")
                result: dict[str, Any] = said["result"]
                return result

    def open(self, path: Path, *, width: int, scripts: bool = True) -> Seen:
        """Open a file, forgetting what the page before did; return what this one does."""
        self.seen = Seen()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._events.clear()
        self.call("Page.navigate", url=path.as_uri())
        until = time.monotonic() + PATIENCE_S
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            if time.monotonic() > until:
                raise RuntimeError(f"{path}: not loaded in {PATIENCE_S} s")
            self._read()
        return self.seen

    def ask(self, expression: str) -> Any:
        """Return what JavaScript says in the page, as JSON can hold it."""
        said = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in said:
            raise RuntimeError(json.dumps(said["exceptionDetails"])[:2000])
        return said["result"].get("value")

    def picture(self, path: Path) -> None:
        """Write the whole page as PNG."""
        said = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(said["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            found = os.read(self._in, 1 << 20)
            if not found:
                raise OSError("the browser went away")
            self._rest += found
        line, _, self._rest = self._rest.partition(b"\0")
        said: dict[str, Any] = json.loads(line)
        if "method" in said:
            self._note(said["method"], said["params"])
            self._events.append(said)
        return said

    def _note(self, method: str, said: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.seen.requests.append(said["request"]["url"])
        elif method in {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}:
            self.seen.complaints.append(f"{method}: {json.dumps(said)[:400]}")
