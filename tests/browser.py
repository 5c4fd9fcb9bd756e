"""A headless Chromium, driven by its own protocol (DevTools) over a WebSocket: no driver needed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from invariants import eventually

DEADLINE_S = 60.0

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Tab:
    """A tab of the browser.

    Attributes:
        requested: The URLs of all that it has requested.
        complaints: What its console, its security policy and its scripts complain about.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.requested: list[str] = []
        self.complaints: list[str] = []

    async def listen(self) -> None:
        """Take what the browser says until it ends."""
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            elif told["method"] == "Network.requestWillBeSent":
                self.requested.append(told["params"]["request"]["url"])
            elif told["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif told["method"] in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(told["params"]))

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        told = await asyncio.wait_for(answer, DEADLINE_S)
        assert "error" not in told, told
        found: dict[str, Any] = told["result"]
        return found

    async def run(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        found = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until an expression is true in the page, and return its value."""
        async with asyncio.timeout(DEADLINE_S):
            while not (found := await self.run(expression)):  # noqa: ASYNC110 - it is in a browser
                await asyncio.sleep(0.05)
        return found

    async def open(self, url: str) -> None:
        """Go to a page, and wait until it is loaded: before, its elements may not be there yet."""
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(DEADLINE_S):
            await self._loaded.wait()

    async def look(self, width: int, height: int, scheme: str) -> None:
        """Take this size, and this colour scheme: `light` or `dark`."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def press(self, key: str) -> None:
        """Press a key: `Tab` or `Enter`."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def picture(self, file: Path) -> None:
        """Write a picture of the whole page."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = await self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        await asyncio.to_thread(file.write_bytes, base64.b64decode(found["data"]))


@contextlib.contextmanager
def started() -> Iterator[str]:
    """Start a browser and return the address that it listens on; end it behind the block."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                CHROMIUM,
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--no-first-run", "--disable-background-networking", "--disable-extensions"),
                *("--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port = Path(profile, "DevToolsActivePort")
            eventually(
                lambda: (port.exists() and "\n" in port.read_text()) or process.poll() is not None,
                DEADLINE_S,
                "the browser listens",
            )
            assert process.poll() is None, "the browser has ended"
            yield f"127.0.0.1:{port.read_text().split()[0]}"
        finally:
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def browsing() -> AsyncIterator[Tab]:
    """Open a tab of a browser of its own."""
    with started() as address:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{address}/json/list") as reply:
                [page] = [each for each in await reply.json() if each["type"] == "page"]
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                listening = asyncio.ensure_future(tab.listen())
                for domain in ("Page", "Network", "Runtime", "Log"):
                    await tab.call(f"{domain}.enable")
                yield tab
                listening.cancel()


__all__ = ["CHROMIUM", "Tab", "browsing"]
