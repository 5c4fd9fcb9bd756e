"""`penstock bench`: how fast this machine can read a job, and which side waits."""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

from penstock.client.commands.common import (
    add_target,
    add_timeout,
    address_in,
    natural,
    positive,
    positive_seconds,
    print_json,
)
from penstock.client.loader import Loader

TIMEOUT_S = 60.0
"""Shorter than a Loader's: a person waits, not a training run."""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "bench",
        help="how fast can this machine read a job",
        description=(
            "Read a job as fast as it comes, without a group, and print rates: batches, bytes and "
            "tokens per second, the share of time spent waiting for data, and client CPU per GB. "
            "Near 100% the server sets the pace, near 0% this process does."
        ),
    )
    add_target(parser)
    parser.add_argument("job", metavar="JOB", help="the job's name")
    parser.add_argument(
        "--seconds",
        type=positive_seconds,
        default=10.0,
        metavar="SECONDS",
        help="how long to read (default: %(default)g)",
    )
    parser.add_argument(
        "--warm",
        type=natural,
        default=20,
        metavar="N",
        help="batches to read before the clock starts (default: 20)",
    )
    parser.add_argument(
        "--prefetch",
        type=positive,
        metavar="N",
        help="batches that may be ready ahead (default: as a Loader, by their size)",
    )
    parser.add_argument(
        "--rank", type=natural, default=0, metavar="R", help="which rank to be (default: 0)"
    )
    parser.add_argument(
        "--world-size", type=positive, default=1, metavar="W", help="of how many (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_timeout(parser, TIMEOUT_S)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read for a while and print the rates."""
    address = address_in(args)
    with Loader(
        args.target,
        args.job,
        tls=address.tls,
        token=address.token,
        rank=args.rank,
        world_size=args.world_size,
        prefetch=args.prefetch,
        deadline_s=args.timeout,
        as_numpy=True,
    ) as loader:
        batches = iter(loader)
        for _ in range(args.warm):
            if next(batches, None) is None:
                break
        before, cpu, began = loader.stats(), _cpu_s(), time.monotonic()
        while time.monotonic() - began < args.seconds and next(batches, None) is not None:
            pass
        wall_s, cpu_s, after = time.monotonic() - began, _cpu_s() - cpu, loader.stats()
    found = {name: after[name] - before[name] for name in ("batches", "bytes", "tokens", "wait_s")}
    gigabytes = found["bytes"] / 1e9
    result = {
        "seconds": round(wall_s, 3),
        "batches": found["batches"],
        "batches_per_s": round(found["batches"] / wall_s, 1),
        "mb_per_s": round(found["bytes"] / wall_s / 1e6, 1),
        "tokens_per_s": round(found["tokens"] / wall_s),
        "wait_share": round(found["wait_s"] / wall_s, 3),
        "client_cpu_s_per_gb": round(cpu_s / gigabytes, 3) if gigabytes else None,
    }
    if args.json:
        print_json(result)
        return 0
    print(
        f"{args.target} {args.job}: {result['batches']:,} batches in {wall_s:.1f} s\n"
        f"  {result['batches_per_s']:,} batches/s, {result['mb_per_s']:,} MB/s, "
        f"{result['tokens_per_s']:,} tokens/s\n"
        f"  waited for data {result['wait_share']:.0%} of the time; "
        f"client CPU {result['client_cpu_s_per_gb']} s/GB"
    )
    return 0


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
