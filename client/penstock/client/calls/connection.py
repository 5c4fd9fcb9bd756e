"""The gRPC channel to one node, and a new one once the files of its credentials have changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from penstock.client.calls.node_address import Address
from penstock.common.certificates import Problem, WatchedFiles
from penstock.wire import MAX_MESSAGE_BYTES
from penstock.wire.errors import InvalidRequest

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.max_frame_size", 16777215),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # else a minute: it overrides the one above
    ("grpc.keepalive_permit_without_calls", 1),
    # The horizon bounds what is under way, so HTTP/2 need not: a wide window instead of probing,
    # which was faster for 8 MB batches wherever both were tried in turn.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 << 20),
    ("grpc.enable_retries", 0),  # penstock resumes at the exact position itself
    ("grpc.use_local_subchannel_pool", 1),  # two Loaders of one process get two connections
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Else half a minute: a Pod that was restarted has another address under its name.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
)


class _Channel:
    """A channel, with how many calls are on it."""

    def __init__(self, channel: grpc.Channel, state: object) -> None:
        self.channel, self.state = channel, state
        self.calls, self.is_current = 0, True


class Connection:
    """The way to one node. Thread-safe; its locks are taken where no signal handler runs.

    Files of certificates are looked at for every call. Where they have changed, the call and those
    after it go by a new channel; calls on the old one go on, and it is closed with the last of
    them. While the new files cannot be used, the old channel stays: they may be half written.

    Args:
        address: The node; its target is what gRPC connects to.

    Raises:
        InvalidRequest: The files cannot be used.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._files = WatchedFiles({} if address.tls is None else address.tls.paths)
        self._lock = threading.Lock()
        self._closed = False
        self._now = self._open()

    def _open(self) -> _Channel:
        target, tls, state = str(self.address.target), self.address.tls, self._files.state()
        if tls is None:
            channel = grpc.insecure_channel(target, options=list(CHANNEL_OPTIONS))
            return _Channel(channel, state)
        held = self._files.read()
        if isinstance(held, Problem):
            raise InvalidRequest(
                f"tls: {held.name} {tls.paths[held.name]}: {held.sentence}", field=held.name
            )
        options = list(CHANNEL_OPTIONS)
        if tls.name is not None:
            options.append(("grpc.ssl_target_name_override", tls.name))
        credentials = grpc.ssl_channel_credentials(
            held.get("ca"), held.get("key"), held.get("cert")
        )
        return _Channel(grpc.secure_channel(target, credentials, options=options), state)

    def hold(self) -> _Channel:
        """Return the channel for a new call; `release` it when the call is over."""
        with self._lock:
            if self._files.paths and not self._closed:
                self._renew()
            found = self._now
            found.calls += 1
            return found

    def release(self, held: _Channel) -> None:
        """Take a call off its channel; a channel that is not current is closed with its last."""
        with self._lock:
            held.calls -= 1
            is_over = held.calls == 0 and not held.is_current
        if is_over:
            held.channel.close()

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        """Give the channel for a short call."""
        held = self.hold()
        try:
            yield held.channel
        finally:
            self.release(held)

    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return what a call shows.

        Raises:
            InvalidRequest: The token's file cannot be read.
        """
        token = self.address.token
        return () if token is None else (("authorization", f"Bearer {token.read()}"),)

    @property
    def is_idle(self) -> bool:
        """Whether no call is on its way."""
        with self._lock:
            return self._now.calls == 0

    def close(self) -> None:
        """Close it, and end the calls on it; idempotent."""
        with self._lock:
            self._closed, now = True, self._now
        now.channel.close()

    def _renew(self) -> None:
        state = self._files.state()
        if state == self._now.state:
            return
        try:
            renewed = self._open()
        except InvalidRequest:
            return
        before, self._now = self._now, renewed
        before.is_current = False
        if before.calls == 0:
            before.channel.close()
