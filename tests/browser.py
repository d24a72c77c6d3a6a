"""A page as a browser shows it: headless Chromium, controlled over a pipe."""

from __future__ import annotations

import base64
import itertools
import json
import os
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.waiting import wait_until

BROWSER_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
"""Flags to run without a display, and without connections to the browser's vendor."""


class Page(HTMLParser):
    """The visible text of a page, and the journals that have charts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.charts: list[str] = []
        self._script = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._script = tag in ("script", "style")
        if tag == "svg" and (journal := dict(attrs).get("data-journal")):
            self.charts.append(journal)

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        if not self._script and data.strip():
            self.words.append(data.strip())


class Browser:
    """A browser with one page. Not safe for threads.

    Args:
        directory: directory for its profile.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)
        self._session: dict[str, str] = {}
        self.requests: list[str] = []
        """Addresses requested by the page."""

    def __enter__(self) -> Self:
        found = subprocess.run(["sh", ".ci/browser.sh"], capture_output=True, text=True, check=True)
        read, its_write = os.pipe()
        its_read, write = os.pipe()
        # The browser expects its pipes as file descriptors 3 and 4.
        command = f'exec "$0" "$@" 3<&{its_read} 4>&{its_write}'
        flags = (*BROWSER_FLAGS, f"--user-data-dir={self._directory}")
        self._process = subprocess.Popen(
            ["bash", "-c", command, found.stdout.strip(), *flags],
            pass_fds=(its_read, its_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(self._directory)},
        )
        os.close(its_read)
        os.close(its_write)
        self._read, self._write = os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)
        self._left = b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        self.call("Page.enable")
        self.call("Network.enable")
        self.resize(1280, 900)
        self.prefer("light")
        self.call("Emulation.setTimezoneOverride", timezoneId="UTC")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._read.close()
        self._write.close()

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command of the DevTools protocol; return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **self._session}
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            more = self._read.read(1 << 20)
            assert more, "the browser has ended"
            self._left += more
        text, _, self._left = self._left.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def open(self, address: str) -> None:
        """Open an address, and wait until its page shows its first values or says that it has none."""
        # The previous page may still send requests.
        self.call("Page.navigate", url="about:blank")
        self.call("Runtime.enable")
        self.requests.clear()
        self.call("Page.navigate", url=address)
        note, banner = (f"document.getElementById('{name}')" for name in ("note", "banner"))
        self.wait(f"{note}?.dataset.ready || {banner}?.hidden === false")

    def evaluate(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str) -> None:
        wait_until(script, lambda: bool(self.evaluate(script)))

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, colours: str) -> None:
        """Emulate a preference for light or dark colours."""
        scheme = {"name": "prefers-color-scheme", "value": colours}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def point_at(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def page(self) -> Page:
        return Page(self.evaluate("document.documentElement.outerHTML"))


def browse(address: str, directory: Path) -> Page:
    """Return what the page shows in a browser once its script has run."""
    with Browser(directory) as browser:
        browser.open(address)
        return browser.page()
