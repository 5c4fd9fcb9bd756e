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
    connected,
    natural,
    positive,
    positive_seconds,
    print_json,
)
from penstock.client.commands.read_window import EPISODE, ReadWindow
from penstock.client.loader import Loader
from penstock.wire.errors import InvalidRequest

TIMEOUT_S = 60.0
"""Shorter than a Loader's: a person waits, not a training run."""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "bench",
        help="how fast can this machine read a job",
        description=(
            "Read a job as fast as it comes, without a group, and print rates: batches, samples, "
            "frames, bytes and tokens per second, gaps between batches, the share of time spent "
            "waiting for data, and client CPU per GB. Near 100% the server sets the pace, near 0% "
            "this process does. penstockd bench starts a node of its own for it, and says what "
            "that takes."
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
    parser.add_argument(
        "--episode",
        default=EPISODE,
        metavar="NAME",
        help="the value that says of which episode rows are (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    # For `penstockd bench`: lines of JSON on stdout as the window begins and ends, with the node's
    # status, and the figures as another one.
    parser.add_argument("--marks", action="store_true", help=argparse.SUPPRESS)
    add_timeout(parser, TIMEOUT_S)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read for a while and print the rates."""
    address = address_in(args)
    window, opened = ReadWindow(args.episode), time.monotonic()
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
        batches, warmed, first_s = iter(loader), 0, 0.0
        while warmed < args.warm and next(batches, None) is not None:
            warmed += 1
            first_s = first_s or time.monotonic() - opened
        _mark(args, "begin")
        before, cpu, began = loader.stats(), _cpu_s(), time.monotonic()
        last = began
        while last - began < args.seconds and (batch := next(batches, None)) is not None:
            now = time.monotonic()
            first_s = first_s or now - opened
            window.add(batch, now - last)
            last = now
        wall_s, cpu_s, after = time.monotonic() - began, _cpu_s() - cpu, loader.stats()
        _mark(args, "end")
    found = {name: after[name] - before[name] for name in ("batches", "bytes", "tokens", "wait_s")}
    if not window.samples:
        raise InvalidRequest(
            f"no sample of job {args.job!r} came in the {wall_s:.1f} s that were measured, after "
            f"{warmed} batches of warm-up and {found['batches']} more: a finite job may end "
            "before; pass a smaller --warm, or a larger --seconds",
            field="--warm",
            value=args.warm,
        )
    gigabytes = found["bytes"] / 1e9
    result = {
        "seconds": round(wall_s, 3),
        "batches": found["batches"],
        "batches_per_s": round(found["batches"] / wall_s, 1),
        "mb_per_s": round(found["bytes"] / wall_s / 1e6, 1),
        "bytes_per_batch": round(found["bytes"] / found["batches"]),
        "tokens_per_s": round(found["tokens"] / wall_s),
        **window.figures(wall_s),
        "first_batch_s": round(first_s, 3),
        "wait_share": round(found["wait_s"] / wall_s, 3),
        "client_cpu_s": round(cpu_s, 3),
        "client_cpu_s_per_gb": round(cpu_s / gigabytes, 3) if gigabytes else None,
    }
    if args.json or args.marks:
        print_json(result)
        return 0
    gaps = ", ".join(f"{name} {1000 * gap:.1f} ms" for name, gap in result["gap_s"].items())
    frames = f", {result['frames_per_s']:,} frames/s" if result["frames"] else ""
    print(
        f"{args.target} {args.job}: {result['batches']:,} batches in {wall_s:.1f} s\n"
        f"  {result['batches_per_s']:,} batches/s, {result['samples_per_s']:,} samples/s{frames}, "
        f"{result['mb_per_s']:,} MB/s, {result['tokens_per_s']:,} tokens/s\n"
        f"  first batch after {result['first_batch_s']} s; gaps {gaps}\n"
        f"  waited for data {result['wait_share']:.0%} of the time; "
        f"client CPU {result['client_cpu_s_per_gb']} s/GB"
    )
    return 0


def _mark(args: argparse.Namespace, which: str) -> None:
    """Print that the window begins or ends, and what the node says of itself; if it is wanted."""
    if args.marks:
        with connected(address_in(args), args.job, args.timeout) as control:
            print_json({"mark": which, "status": control.status()})


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
