"""Machines of a test's own: network namespaces on one switch, with links that lose packets.

Whoever is root on Linux may make them, unless a container forbids it. The names of a process's
namespaces have its process id, so that tests beside each other do not meet.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess

import pytest

_NUMBERS = itertools.count(1)


class Machine:
    """A network namespace with an address on a switch.

    Args:
        name: Of the namespace.
        address: Its address.
    """

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address

    @property
    def within(self) -> list[str]:
        """Return what runs a command on this machine, when it stands before it."""
        return ["ip", "netns", "exec", self.name]

    def loses(self, *rule: str) -> None:
        """Lose packets, without a word to whoever sent them.

        Args:
            rule: Which, as iptables has it: `INPUT -s 10.0.0.1`, say, loses what comes from there
                and lets answers to it out.
        """
        self._tables("-A", *rule, "-j", "DROP")

    def loses_nothing(self) -> None:
        """Let every packet pass again."""
        self._tables("-F")

    def _tables(self, *arguments: str) -> None:
        _call(*self.within, "iptables", "-w", *arguments)


class Switch:
    """What machines of a test are joined by; a context manager that takes all of it away again."""

    def __init__(self) -> None:
        self._name = f"penstock-{os.getpid()}-{next(_NUMBERS)}"
        self._machines: list[Machine] = []

    def __enter__(self) -> Switch:
        missing = [program for program in ("ip", "iptables") if shutil.which(program) is None]
        if os.geteuid() != 0 or missing:
            _not_run(f"{' and '.join(missing)} not there" if missing else "only root may")
        try:
            _call("ip", "netns", "add", self._name)
            within = ("ip", "-n", self._name, "link")
            _call(*within, "add", "switch", "type", "bridge")
            _call(*within, "set", "switch", "up")
            self.machine().loses_nothing()
        except AssertionError as refused:
            self.__exit__()
            _not_run(str(refused))
        return self

    def machine(self) -> Machine:
        """Return one machine more."""
        number = len(self._machines) + 1
        made = Machine(f"{self._name}-{number}", f"10.99.0.{number}")
        self._machines.append(made)
        _call("ip", "netns", "add", made.name)
        there, port = ("ip", "-n", made.name), f"port{number}"
        _call(*there, "link", "add", "eth0", "type", "veth", "peer", port, "netns", self._name)
        _call("ip", "-n", self._name, "link", "set", port, "master", "switch", "up")
        _call(*there, "addr", "add", f"{made.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _call(*there, "link", "set", device, "up")
        return made

    def __exit__(self, *_: object) -> None:
        for name in [*(machine.name for machine in self._machines), self._name]:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def _call(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


def _not_run(why: str) -> None:
    pytest.skip(f"NOT RUN: no network namespaces here: {why}")


__all__ = ["Machine", "Switch"]
