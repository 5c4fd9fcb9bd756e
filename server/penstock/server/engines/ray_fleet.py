"""A fleet of nodes on Ray: one detached actor on each of several machines, kept by Ray."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.common.ray_actors import NAMESPACE, actor_name, number_of
from penstock.server.engines.ray_node import RayNode
from penstock.server.files.filesystems import require
from penstock.server.process.ray_errors import ray_errors, ray_words
from penstock.wire.errors import InvalidRequest, Unreachable

ANSWER_S = 10.0
"""How long an actor may take to say where its node is."""

LOOK_S = 0.5
"""Between two looks at nodes that are not ready."""

DRAIN_S = 90.0
"""How long a node may drain before its actor is ended: longer than `drain_seconds` by default."""

REMEDY = (
    "check that it runs, and that its machines have the same versions of Ray, Python and penstock "
    "as this one"
)


class FleetNode(NamedTuple):
    """A node of a fleet, as its actor tells of it.

    Attributes:
        name: Of the actor, and of the node.
        address: Where it listens; empty = it is not ready, or does not answer.
        state: For people: ready, starting, or why nothing is known.
    """

    name: str
    address: str
    state: str


class RayFleet:
    """The nodes of one name in the cluster that `ray.init` finds.

    Args:
        name: What `ray:NAME` calls it.

    Raises:
        InvalidRequest: The name cannot be one of an actor.
        MissingExtra: Ray is not installed.
        Unreachable: Ray cannot be reached.
    """

    def __init__(self, name: str) -> None:
        if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
            raise InvalidRequest(
                f"{name!r} cannot name nodes on Ray: give letters, digits, - and _",
                field="name",
                value=name,
            )
        self.name = name
        self._ray = require("ray", extra="ray", who="penstockd ray")
        self._began_here = not self._ray.is_initialized()
        if self._began_here:
            with ray_errors(REMEDY):
                self._ray.init(
                    address=os.environ.get("RAY_ADDRESS", "auto"),
                    namespace=NAMESPACE,
                    log_to_driver=False,
                    logging_level="error",
                )

    def close(self) -> None:
        """Disconnect; the nodes stay."""
        if self._began_here:
            self._ray.shutdown()

    def __enter__(self) -> RayFleet:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self.close()

    def up(
        self, file: str, nodes: int, options: Sequence[str], *, cpus: float, port: int
    ) -> list[FleetNode]:
        """Start the nodes, each on a machine of its own, and return at once.

        Raises:
            InvalidRequest: There are nodes of this name.
            Unreachable: The cluster has too few machines with as many free CPUs; or Ray fails.
        """
        if there := self._actors():
            raise InvalidRequest(
                f"there are {len(there)} nodes named {self.name!r} on this Ray: end them with "
                f"`penstockd ray down {self.name}` first, or give --name",
                field="name",
                value=self.name,
            )
        ray = self._ray
        with ray_errors(REMEDY):
            machines = [
                machine
                for machine in ray.nodes()
                if machine["Alive"] and machine["Resources"].get("CPU", 0) >= cpus
            ]
            if len(machines) < nodes:
                raise Unreachable(
                    f"{nodes} nodes of {cpus:g} CPUs need as many machines, and this Ray has "
                    f"{len(machines)} that large: give --nodes {len(machines) or 1}, or fewer "
                    "--cpus, or add machines",
                    target=f"ray:{self.name}",
                )
            group = ray.util.placement_group(
                [{"CPU": cpus}] * nodes,
                strategy="STRICT_SPREAD",
                name=self._group,
                lifetime="detached",
            )
            strategies = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
            for number in range(nodes):
                name = actor_name(self.name, number)
                ray.remote(RayNode).options(
                    name=name,
                    namespace=NAMESPACE,
                    lifetime="detached",
                    max_restarts=-1,
                    max_concurrency=4,  # a node that drains still says where it is
                    num_cpus=cpus,
                    scheduling_strategy=strategies(group, placement_group_bundle_index=number),
                ).remote(file, list(options), port, name)
        return self.nodes()

    @property
    def _group(self) -> str:
        return f"penstock-{self.name}"

    def nodes(self) -> list[FleetNode]:
        """Return all nodes, and what is known of each.

        Raises:
            Unreachable: Ray fails.
        """
        found = []
        with ray_errors(REMEDY):
            asked = [(name, self._handle(name).about.remote()) for name in self._actors()]
            refs = [ref for _, ref in asked]
            done = set(
                self._ray.wait(refs, num_returns=len(refs), timeout=ANSWER_S)[0] if refs else ()
            )
            for name, ref in asked:
                if ref not in done:
                    found.append(FleetNode(name, "", "waits for a machine, or does not answer"))
                    continue
                try:
                    told = self._ray.get(ref)
                except self._ray.exceptions.RayError as error:
                    found.append(FleetNode(name, "", f"starts again: {ray_words(error)}"))
                    continue
                last = f": {told['last']}" if told["last"] else ""
                state = "ready" if told["address"] else f"starting{last}"
                found.append(FleetNode(name, told["address"], state))
        return found

    def wait(self, deadline_s: float, tell: Callable[[Sequence[FleetNode]], None]) -> bool:
        """Wait until all nodes are ready; tell whether they are.

        Args:
            deadline_s: How long.
            tell: Called with what is known whenever it has changed.
        """
        until, before = time.monotonic() + deadline_s, None
        while True:
            nodes = self.nodes()
            if nodes != before:
                tell(nodes)
                before = nodes
            if nodes and all(node.address for node in nodes):
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(LOOK_S)

    def down(self) -> list[str]:
        """Let all nodes drain, and end them; return their names.

        Raises:
            InvalidRequest: There is none.
            Unreachable: Ray fails.
        """
        ray = self._ray
        if not (names := self._actors()):
            raise InvalidRequest(
                f"there are no nodes named {self.name!r} on this Ray: `penstockd ray status NAME` "
                "looks for others",
                field="name",
                value=self.name,
            )
        with ray_errors(REMEDY):
            handles = [self._handle(name) for name in names]
            drains = [handle.drain.remote() for handle in handles]
            ray.wait(drains, num_returns=len(drains), timeout=DRAIN_S)
            for handle in handles:
                ray.kill(handle, no_restart=True)
            with contextlib.suppress(ValueError):  # of another form, or removed by hand
                ray.util.remove_placement_group(ray.util.get_placement_group(self._group))
        return names

    def _handle(self, name: str) -> Any:
        return self._ray.get_actor(name, namespace=NAMESPACE)

    def _actors(self) -> list[str]:
        """Return the names of the actors, in the order of their numbers."""
        with ray_errors(REMEDY):
            there = self._ray.util.list_named_actors(all_namespaces=True)
        named = [one["name"] for one in there if one["namespace"] == NAMESPACE]
        numbers = {name: number_of(self.name, name) for name in named}
        return sorted(
            (name for name, number in numbers.items() if number is not None),
            key=lambda name: numbers[name] or 0,
        )
