"""How many units move when a node joins or leaves, over the least that is possible.

Over every 7th number of units from 16 to 240, and 2 to 16 nodes: `python tests/bench/dealing.py`.
It takes a few seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from penstock.client.nodes.dealing import deal

UNITS, NODES = range(16, 241, 7), range(2, 17)
KINDS: dict[str, Callable[[int], str]] = {
    "numbered from 0": lambda at: f"penstock-{at}",
    "numbered from 1": lambda at: f"gpu{at + 1:03}/0.0.0.0:50051",
    "numbered from 17": lambda at: f"gpu{at + 17:03}/0.0.0.0:50051",
    "numbered from 29": lambda at: f"gpu{at + 29:03}/0.0.0.0:50051",
    "without an order": lambda at: f"penstock-{random.Random(at).randbytes(4).hex()}",
}
WEIGHTS = {"equal": (4,), "1 : 2 : 1 : 4 : 1": (4, 8, 4, 16, 4)}


def moved(before: tuple[str, ...], after: tuple[str, ...]) -> int:
    """Return how many units have another node."""
    return sum(old != new for old, new in zip(before, after, strict=True))


def main() -> None:
    """Print a line for each kind of ids and of weights: in sum, and the worst case."""
    print(f"{'ids':18}{'weights':20}{'joins':>16}{'leaves':>16}{'known to leave':>16}")
    for kind, name in KINDS.items():
        for weighted, weights in WEIGHTS.items():
            found: dict[str, list[tuple[int, int]]] = {"joins": [], "leaves": [], "known": []}
            for units in UNITS:
                for count in NODES:
                    nodes = {name(at): weights[at % len(weights)] for at in range(count)}
                    last, gone = [*nodes][-1], [*nodes][(units * 7 + count) % count]
                    whole = deal(units, nodes, salt=b"log")
                    for what, node in (("joins", last), ("leaves", gone)):
                        rest = {one: nodes[one] for one in nodes if one != node}
                        move = moved(whole, deal(units, rest, salt=b"log"))
                        found[what].append((move, max(1, whole.count(node))))
                    away = deal(units, nodes, away=[gone], salt=b"log")
                    found["known"].append((moved(whole, away), max(1, whole.count(gone))))
            cells = ""
            for pairs in found.values():
                total = sum(move for move, _ in pairs) / sum(least for _, least in pairs)
                cells += f"{total:9.2f} ({max(move / least for move, least in pairs):4.1f})"
            print(f"{kind:18}{weighted:20}{cells}")


if __name__ == "__main__":
    main()
