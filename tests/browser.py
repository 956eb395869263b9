"""A headless Chromium, controlled through pipes by the DevTools protocol, without a further package.

`python tests/browser.py site/index.html docs/images/board.png` takes README's picture of the front page.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60.0  # seconds that one answer may take on a busy machine


def executable() -> str | None:
    """Return the path of the browser; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. Requests and complaints of the page are collected."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="browser-")
        from_us, to_browser = os.pipe()
        from_browser, to_us = os.pipe()
        # the browser reads commands from descriptor 3 and writes answers to 4
        script = f'exec "$0" "$@" 3<&{from_us} 4>&{to_us}'
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={self.folder}", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", script, str(executable()), *options],
            pass_fds=(from_us, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        self.commands, self.answers = os.fdopen(to_browser, "wb", buffering=0), os.fdopen(from_browser, "rb")
        self.number, self.session, self.rest = 0, "", b""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = next(entry for entry in self.call("Target.getTargets")["targetInfos"] if entry["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.commands.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            piece = os.read(self.answers.fileno(), 1 << 16)
            assert piece, "the browser has ended"
            self.rest += piece
        text, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, event: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(event["exceptionDetails"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.complaints.append(event["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(event["args"]))

    def open(self, path: Path, *, width: int = 1200, scheme: str = "light", media: str = "") -> None:
        """Show a file, in a window of some width."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self.run("document.readyState === 'complete' && location.protocol === 'file:'"):
            pass

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str, *, code: int, text: str = "") -> None:
        """Press and release a key."""
        common = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def take_picture(self, path: Path, out: Path, *, width: int, last: str) -> None:
        """Write a page as a PNG, from its top to an element that an expression names, with 1.5 times its pixels."""
        self.open(path, width=width)
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        height = self.run(f"{last}.getBoundingClientRect().bottom") + 16
        view = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1.5}
        picture = self.call("Page.captureScreenshot", clip=view, captureBeyondViewport=True)["data"]
        out.write_bytes(base64.b64decode(picture))

    def close(self) -> None:
        """End the browser."""
        self.call("Browser.close")
        self.process.wait(timeout=PATIENCE)
        self.commands.close()
        self.answers.close()
        shutil.rmtree(self.folder, ignore_errors=True)


if __name__ == "__main__":
    shown = Browser()
    shown.take_picture(Path(sys.argv[1]), Path(sys.argv[2]), width=820, last="document.querySelectorAll('.card')[1]")
    shown.close()
