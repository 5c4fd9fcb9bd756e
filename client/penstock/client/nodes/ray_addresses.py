"""`ray:NAME`: where the nodes are that `penstockd ray up --name NAME` has started."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

from penstock.common.ray_actors import NAMESPACE, number_of
from penstock.wire.errors import InvalidRequest, MissingExtra, Unreachable

ANSWER_S = 5.0
"""How long actors may take to say where their nodes are; one that starts again does not answer."""

LOOK_S = 5.0
"""How often it is asked."""


def open_addresses(rest: str, *, job: str = "", grouped: bool = True) -> RayAddresses:
    """Return where the nodes of a target are: an entry point of `penstock.transports`.

    Raises:
        PenstockError: See `RayAddresses`.
    """
    return RayAddresses(rest)


class RayAddresses:
    """Asks the actors of a fleet, through the Ray that this process is connected to.

    A process that is in no Ray yet is connected to the one that `RAY_ADDRESS` names, else to that
    of its machine.

    Args:
        name: The fleet's name.

    Raises:
        MissingExtra: Ray is not installed.
        InvalidRequest: The target has no name.
    """

    def __init__(self, name: str) -> None:
        if not name:
            raise InvalidRequest(
                "the target ray: has no name: write ray:NAME, with the name that was given to "
                "`penstockd ray up --name NAME`",
                field="target",
                value="ray:",
            )
        self.every_s, self.name = LOOK_S, name
        try:
            self._ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise MissingExtra(
                f"the target ray:{name} needs the package ray: pip install 'penstock[ray]'",
                package="ray",
                extra="ray",
            ) from None

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def look(self) -> Sequence[str]:
        """Return where those nodes listen that say so now; it may wait some seconds.

        Raises:
            Unreachable: Ray cannot be reached, or has no actor of that name.
        """
        ray = self._ray
        try:
            if not ray.is_initialized():
                ray.init(
                    address=os.environ.get("RAY_ADDRESS", "auto"),
                    log_to_driver=False,
                    logging_level="error",
                )
            there = ray.util.list_named_actors(all_namespaces=True)
            names = [
                one["name"]
                for one in there
                if one["namespace"] == NAMESPACE and number_of(self.name, one["name"]) is not None
            ]
            if names:
                return self._told(names)
        except Exception as error:  # its errors have several bases
            said = str(error).strip().splitlines()
            raise Unreachable(
                f"ray:{self.name}: Ray has failed ({said[-1] if said else type(error).__name__}): "
                "check RAY_ADDRESS, and that this process has the cluster's versions of Ray and "
                "Python",
                target=f"ray:{self.name}",
            ) from error
        raise Unreachable(
            f"ray:{self.name}: Ray has no nodes of this name: start them with "
            f"`penstockd ray up FILE --nodes N --name {self.name}`",
            target=f"ray:{self.name}",
        )

    def _told(self, names: Sequence[str]) -> list[str]:
        ray = self._ray
        asked = [
            ray.get_actor(name, namespace=NAMESPACE).address.remote() for name in sorted(names)
        ]
        done, _ = ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S)
        found = []
        for answer in done:
            try:
                found.append(str(ray.get(answer)))
            except ray.exceptions.RayError:  # it has just died: Ray starts it again
                continue
        return sorted(address for address in found if address)
