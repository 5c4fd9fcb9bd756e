"""A web server that gives ranges of files, takes its time, and fails as it is told.

In a process of its own: `python far_store.py FOLDER DELAY_S` prints its address.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType

from aiohttp import web


class FarStore:
    """Serves the files of a folder on the loopback, from a thread of its own.

    Args:
        folder: The folder.
        delay_s: How long each reply takes.

    Attributes:
        delay_s: The same.
        asked: The path and the range of each request.
        most_at_once: The most requests that it had at a time.
        failing: By path, the statuses of its next replies.
        held: By path, what its replies wait for.
    """

    def __init__(self, folder: Path, delay_s: float = 0.0) -> None:
        self.folder, self.delay_s = folder, delay_s
        self.asked: list[tuple[str, str]] = []
        self.counts: Counter[str] = Counter()
        self.most_at_once = self._now = 0
        self.failing: dict[str, list[int]] = {}
        self.held: dict[str, threading.Event] = {}
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FarStore:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for event in self.held.values():
            event.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        wanted = request.headers.get("Range", "")
        self.asked.append((path, wanted))
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            if path in self.held:
                await asyncio.to_thread(self.held[path].wait, 60)
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if self.failing.get(path):
                return web.Response(status=self.failing[path].pop(0))
            return self._file(path, wanted, request.headers.get("If-Match"))
        finally:
            self._now -= 1

    def _file(self, path: str, wanted: str, match: str | None) -> web.Response:
        file = self.folder / path
        if not file.is_file():
            return web.Response(status=404)
        data = file.read_bytes()
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        if match not in (None, tag):
            return web.Response(status=412)
        headers = {"ETag": tag, "Accept-Ranges": "bytes"}
        if not wanted:
            return web.Response(body=data, headers=headers)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(len(data), int(last) + 1 if last else len(data))
        if start >= len(data):
            return web.Response(status=416, headers={"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return web.Response(status=206, body=data[start:stop], headers=headers)


if __name__ == "__main__":
    with FarStore(Path(sys.argv[1]), float(sys.argv[2])) as served:
        sys.stdout.write(f"{served.url}\n")
        sys.stdout.flush()
        sys.stdin.read()  # until whoever started it ends
