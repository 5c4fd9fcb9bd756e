"""Work beside the caller: its result, its error, and its end where nobody waits any more."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from types import FrameType
from typing import Any

import pytest

from penstock.client.calls.background_thread import Patience, in_background, log_in_background
from unit.served import wait_until


def test_what_is_done_in_the_background_is_returned_and_raised() -> None:
    def fail(_: Patience) -> None:
        raise KeyError("x")

    assert in_background(lambda _: threading.get_ident()) != threading.get_ident()
    with pytest.raises(KeyError, match="x"):
        in_background(fail)


def test_a_thread_that_ends_late_keeps_nothing_of_the_work() -> None:
    """Whoever waits may go on before it ends, and count on what is gone then."""
    goes, is_late = threading.Event(), threading.Event()

    class Thing:
        pass

    thing = Thing()
    reference = weakref.ref(thing)

    def linger(frame: FrameType, event: str, call: Any) -> None:
        if event == "c_return" and call.__name__ == "release":
            is_late.set()
            assert goes.wait(60)

    def work(_: Patience, thing: Thing = thing) -> None:
        sys.setprofile(linger)  # of this thread alone

    del thing
    try:
        in_background(work)
        del work
        assert is_late.wait(60)
        assert reference() is None
    finally:
        goes.set()


ENDING = """
from penstock.client.calls.background_thread import in_background

def work():
    try:
        yield
    finally:  # run by the interpreter, when a program has left it in the middle and is over
        print("done:", in_background(lambda _: 7), flush=True)

left = work()
next(left)
"""


def test_a_process_that_ends_does_it_without_a_thread() -> None:
    """No thread runs then: a Loader in a generator that was left is closed all the same."""
    done = subprocess.run(
        [sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=120
    )

    assert (done.stdout, done.stderr, done.returncode) == ("done: 7\n", "", 0)


def test_a_wait_has_an_end_and_the_work_goes_on() -> None:
    go, done = threading.Event(), threading.Event()

    def work(_: Patience) -> None:
        go.wait(30)
        done.set()

    with pytest.raises(TimeoutError):
        in_background(work, patience_s=0.01)
    go.set()
    assert done.wait(30)


class Interrupted(Exception):
    """What a signal handler raises."""


def test_work_whose_caller_was_interrupted_learns_of_it() -> None:
    """A call to a server that is away is not repeated for a caller who has gone."""
    left = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    def work(patience: Patience) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        if patience.acquire(timeout=30):
            left.set()

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            in_background(work)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert left.wait(30)


def test_a_line_of_the_log_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A lock of `logging` that a Ctrl-C has left locked elsewhere stops nobody here."""
    monkeypatch.setattr("penstock.client.calls.background_thread.LOG_S", 0.05)
    logger = logging.getLogger("penstock")
    with caplog.at_level(logging.WARNING, "penstock"):
        caplog.handler.acquire()
        try:
            log_in_background(logger.warning, "job %r is %s", "code", "late")
            assert caplog.messages == []
        finally:
            caplog.handler.release()
        log_in_background(logger.warning, "and on")
        # On its own thread, which may come after the next test else.
        wait_until(lambda: len(caplog.messages) == 2, "the line that was late")
    assert "and on" in caplog.messages


def test_a_terminal_obeys_nothing_of_what_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Why a node drains is its own words; a trainer's log goes to a terminal as it is."""
    with caplog.at_level(logging.INFO):
        log_in_background(
            logging.getLogger("penstock").info, "job %r: %s (%d)", "x", "red \x1b[31m", 7
        )

    assert caplog.messages == [r"job 'x': red \x1b[31m (7)"]
