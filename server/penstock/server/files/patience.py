"""How long a store is waited for: none of its replies holds up whoever reads, however it comes.

A reply has a bound in time without a byte, and one in bytes a second: a server that is silent, one
that never ends its headers and one that gives a byte a second fail alike, and are tried again.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

SILENT_S = 30.0
"""A reply that has not begun after so long, or goes on for so long without a byte, has failed."""

LEAST_BYTES_S = 16 << 10
"""What a reply gives in a second, at least, counted from its request on without `SILENT_S`."""


def asked(
    fs: Any, call: Callable[..., T], *args: Any, nbytes: int = 0, requests: int = 1, **named: Any
) -> T:
    """Return what a method of a filesystem gives, within a time where the filesystem has one.

    Filesystems that are asked over asyncio (HTTP, S3, GCS, Azure) take `timeout` for each call.
    Others have bounds of their own, such as `timeout` of FTP, in their options.

    Args:
        fs: The filesystem.
        call: A method of it that waits for a reply.
        args: Of the call.
        nbytes: How many bytes it gives.
        requests: How many requests it makes.
        named: Of the call.

    Raises:
        TimeoutError: It took longer.
        Exception: Whatever the call raises.
    """
    seconds = requests * SILENT_S + nbytes / LEAST_BYTES_S
    if getattr(type(fs), "async_impl", False) is True:
        named["timeout"] = seconds
    try:
        return call(*args, **named)
    except TimeoutError as error:
        if str(error):
            raise
        raise TimeoutError(f"it was waited for {seconds:.0f} s, and no whole reply came") from error


class ReplyClock:
    """The time of one reply, as a context of the task that asks for it and takes it.

    Leaving it raises `TimeoutError` where the reply took too long.
    """

    def __init__(self) -> None:
        asyncio = importlib.import_module("asyncio")  # that of fsspec: nothing here begins a loop
        self._loop = asyncio.get_running_loop()
        self._began = self._came = self._loop.time()
        self._timeout = asyncio.timeout(SILENT_S)
        self._given = 0

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            raise self._failure() from late

    def count(self, nbytes: int) -> None:
        """Note bytes of the reply that came just now: the next ones have their time."""
        self._given += nbytes
        self._came = self._loop.time()
        most = self._began + SILENT_S + self._given / LEAST_BYTES_S
        self._timeout.reschedule(min(self._came + SILENT_S, most))

    def _failure(self) -> TimeoutError:
        now = self._loop.time()
        said = f"{self._given:,} bytes came in {now - self._began:.1f} s"
        if now - self._came >= SILENT_S:
            said += f", and none in the last {now - self._came:.1f} s"
        return TimeoutError(
            f"{said}; a reply may be silent for {SILENT_S:g} s, and gives at least "
            f"{LEAST_BYTES_S:,} bytes a second"
        )
