"""Chromium without a window, driven through chromedriver's HTTP interface: no package beyond Python's own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

KEYS = {"ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014", "ArrowDown": "\ue015",
        "Home": "\ue011", "End": "\ue010"}  # fmt: skip
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_MISSING = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
WHY_NOT = f"needs {' and '.join(_MISSING)} (Debian: apt install chromium chromium-driver)" if _MISSING else ""


class Browser:
    """One window."""

    def __init__(self, server: str) -> None:
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1100,900"]
        wanted = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        self._server = server
        opened = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._server += f"/session/{opened['sessionId']}"

    def open(self, page: Path) -> None:
        """Show a file."""
        self._ask("POST", "/url", {"url": page.as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def texts(self, selector: str) -> list[str]:
        """The text of all elements that a selector finds, spaces as they are."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def click(self, selector: str) -> None:
        """A click as with a mouse, on the first that a selector finds."""
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        self._ask("POST", f"/element/{found[_ELEMENT]}/click", {})

    def press(self, key: str) -> None:
        """A key, down and up."""
        strokes = [{"type": kind, "value": KEYS[key]} for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": strokes}]})

    def emulate(self, command: str, **parameters: Any) -> None:
        """A command of the DevTools protocol."""
        self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def complaints(self) -> list[str]:
        """What the console has said since the last call."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def close(self) -> None:
        """End the browser."""
        self._ask("DELETE", "", None)

    def _ask(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._server + path, data, {"Content-Type": "application/json"}, method=method)
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser for a while."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert driver.stdout is not None
        port = next(found[1] for line in driver.stdout if (found := re.search(r"successfully on port (\d+)", line)))
        browser = Browser(f"http://127.0.0.1:{port}")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait()
