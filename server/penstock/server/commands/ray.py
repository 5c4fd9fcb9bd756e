"""`penstockd ray`: nodes as actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from penstock.common.text_table import Table
from penstock.server.commands.say import say
from penstock.server.commands.serve import serve
from penstock.server.engines.ray_fleet import FleetNode, RayFleet
from penstock.server.jobs.load import load
from penstock.server.jobs.settings import ServerSettings
from penstock.wire.errors import InvalidRequest, Unreachable

_NAME = click.argument("name")


@click.group()
def ray() -> None:
    """Run nodes on a Ray cluster.

    They are one actor on each of several machines, which Ray starts again when it ends. Readers
    find them by `ray:NAME`. RAY_ADDRESS says which cluster; by default it is the one that this
    machine belongs to.
    """


@ray.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option("--nodes", required=True, type=click.IntRange(1), help="How many.")
@click.option("--name", default="penstock", show_default=True, help="What readers call them.")
@click.option(
    "--cpus",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="CPUs of each, which Ray keeps for it. Give --workers to the nodes accordingly.",
)
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Default: a free one.")
@click.option(
    "--wait",
    "wait_s",
    default=300.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds to wait until all are ready; 0 returns at once.",
)
def up(
    file: Path,
    options: tuple[str, ...],
    nodes: int,
    name: str,
    cpus: float,
    port: int,
    wait_s: float,
) -> int:
    """Start nodes, each on a machine of its own.

    FILE lies at the same path on each machine. What follows `--` goes to each `penstockd serve`:
    such as --store, as several nodes need a store that they share, and --insecure true or a
    certificate in the job file, as they are reached from other machines.

    \b
    Example:
      penstockd ray up /data/penstock.yaml --nodes 4 --cpus 16 -- --workers 16 --insecure true
    """  # noqa: D301 - \b is for click
    _check(str(file), options, nodes)
    with RayFleet(name) as fleet:
        found = fleet.up(str(file.resolve()), nodes, options, cpus=cpus, port=port)
        if not wait_s:
            _print(found)
            return 0
        if fleet.wait(wait_s, _print):
            say(f"read from them by Loader('ray:{name}', ...)")
            return 0
        missing = [node for node in fleet.nodes() if not node.address]
    if not missing:
        return 0
    raise Unreachable(
        f"{len(missing)} of {nodes} nodes are not ready after {wait_s:.0f} s "
        f"({missing[0].name}: {missing[0].state}): Ray goes on trying; `penstockd ray status "
        f"{name}` tells of them, `penstockd ray down {name}` ends them",
        target=f"ray:{name}",
    )


@ray.command()
@_NAME
def status(name: str) -> int:
    """Say where the nodes are, and which are not ready."""
    with RayFleet(name) as fleet:
        _print(fleet.nodes())
    return 0


@ray.command()
@_NAME
def down(name: str) -> int:
    """Let the nodes drain, and end them."""
    with RayFleet(name) as fleet:
        names = fleet.down()
    say(f"{len(names)} nodes have ended: {', '.join(names)}")
    return 0


def _print(nodes: Sequence[FleetNode]) -> None:
    rows = [(node.name, node.address or "-", node.state) for node in nodes]
    for line in Table(rows, heads=("node", "address", "state")).lines():
        say(line)


def _check(file: str, options: Sequence[str], nodes: int) -> None:
    """Refuse what no node could serve, before Ray starts it again and again.

    Raises:
        PenstockError: The job file, or an option, cannot be.
        InvalidRequest: Several nodes would have a store each.
    """
    given = serve.make_context("penstockd serve", [file, *options]).params
    assignments = given.pop("assignments")
    flags = {key: value for key, value in given.items() if key in ServerSettings.model_fields}
    store = load(file, overrides=flags, assignments=assignments).server.store
    if nodes > 1 and store.startswith("sqlite:"):
        raise InvalidRequest(
            f"{nodes} nodes need one store, and {store} is a file that one node opens: give "
            "`-- --store postgresql://HOST/NAME`, or server.store in the job file",
            field="store",
            value=store,
        )
