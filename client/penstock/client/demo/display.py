"""How a run is shown: a live panel on a terminal, plain lines everywhere else."""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import Any, Protocol

from penstock.client.demo.board import Board

LINE_EVERY_S = 2.0

WARM_BATCHES = 8
"""Rates of fewer batches say more about prefetched batches than about the server."""


class Display(Protocol):
    """Shows a board."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *error: object) -> None: ...

    def refresh(self, board: Board) -> None:
        """Show the current state; called many times a second."""
        ...

    def tell(self, board: Board, sentence: str) -> None:
        """Show something that happened; it stays."""
        ...


def open_display(plain: bool) -> Display:
    """Return the live panel where there is a terminal and `rich`, else plain lines."""
    has_rich = importlib.util.find_spec("rich") is not None
    if plain or not has_rich or not sys.stdout.isatty():
        return PlainDisplay()
    return LiveDisplay()


class PlainDisplay:
    """Lines for files and pipes: what happens, and every two seconds the progress."""

    def __init__(self) -> None:
        self._line_at = 0.0

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: the lines stay."""

    def refresh(self, board: Board) -> None:
        """Print a line if the last one is old."""
        now = time.monotonic()
        if now - self._line_at < LINE_EVERY_S or not board.batches:
            return
        self._line_at = now
        waits = ", ".join(
            f"{row.wait_share:.0%}" if row.batches > WARM_BATCHES else "-" for row in board.ranks
        )
        counted = (
            f"compared {board.compared:,}/{board.wanted:,}"
            if board.compared is not None
            else f"step {board.finished_steps}/{board.until_step}  "
            f"{board.tokens_per_s():,.0f} tokens/s  packing {board.efficiency or 0:.4f}  "
            f"waiting {waits}  server {board.server.state}"
        )
        print(f"{_clock(board.elapsed_s)}    {counted}", flush=True)

    def tell(self, board: Board, sentence: str) -> None:
        """Print it."""
        print(f"{_clock(board.elapsed_s)}  {sentence}", flush=True)


class LiveDisplay:
    """A panel that is redrawn a few times a second; events stay in it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False)
        self._live = Live(console=self._console, refresh_per_second=8, transient=False)
        self._board: Board | None = None

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the last picture on the screen."""
        if self._board is not None:
            self._live.update(_panel(self._board), refresh=True)
        self._live.stop()

    def refresh(self, board: Board) -> None:
        """Draw the board."""
        self._board = board
        self._live.update(_panel(board))

    def tell(self, board: Board, sentence: str) -> None:
        """Draw the board, which shows the sentence among its events."""
        self.refresh(board)


def _panel(board: Board) -> Any:
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    parts: list[Any] = [Text(board.title, style="dim"), Text(), _progress(board), _figures(board)]
    parts += [Text(), _server(board)]
    if board.ranks:
        note = "the ranks have no model: they wait whenever they read faster than it packs"
        if board.compared is not None:
            note = "tokens/s is the mean from the first batch to the last, kills included"
        parts += [Text(), _ranks(board), Text(note, style="dim")]
    parts += [Text(), _story(board)]
    return Panel(Group(*parts), title="[bold]penstock demo[/]", title_align="left", padding=(0, 1))


def _progress(board: Board) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    if board.compared is not None:
        done, total, name = board.compared, board.wanted, "compared"
    else:
        done, total, name = board.finished_steps, board.until_step, "steps"
    grid = Table.grid(padding=(0, 1))
    grid.add_row(
        f"{name:<8}",
        ProgressBar(total=max(1, total), completed=done, width=36),
        f"[bold]{done:,}[/] of {total:,}",
        f"[dim]{board.elapsed_s:.0f} s[/]",
    )
    return grid


def _figures(board: Board) -> Any:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    efficiency = "-" if board.efficiency is None else f"{board.efficiency:.4f}"
    rate = board.mean_tokens_per_s() if board.compared is not None else board.tokens_per_s()
    grid.add_row(
        f"[bold]{rate:>9,.0f}[/] tokens/s",
        f"packing efficiency [bold]{efficiency}[/]",
        f"[bold]{board.batches:,}[/] batches",
        f"[bold]{board.tokens / 1e6:.1f} M[/] tokens",
    )
    return grid


def _server(board: Board) -> Any:
    from rich.table import Table

    server = board.server
    colour = {"serving": "green", "killed": "red"}.get(server.state, "yellow")
    load = ""
    if server.state == "serving" and server.workers:
        load = (
            f"{server.busy}/{server.workers} workers busy, {server.ready_batches} batches ready "
            f"({server.ready_bytes / (1 << 20):.1f} MiB)"
        )
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        f"{'server':<11}", f"{server.pid:<7}", f"[{colour}]{server.state}[/]", f"[dim]{load}[/]"
    )
    return grid


def _ranks(board: Board) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("trainer", no_wrap=True, min_width=11)
    table.add_column("pid", no_wrap=True, min_width=7)
    table.add_column("state", no_wrap=True, min_width=10)
    for name in ("step", "batches", "tokens/s", "waits for data"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in board.ranks:
        state = board.rank_state(row)
        colour = {"reading": "green", "killed": "red", "finished": "blue"}.get(state, "yellow")
        table.add_row(
            f"rank {row.rank} of {row.world_size}",
            str(row.pid),
            f"[{colour}]{state}[/]",
            f"{row.step:,}" if row.batches else "",
            f"{row.batches:,}" if row.batches else "",
            f"{row.tokens_per_s:,.0f}" if row.batches > WARM_BATCHES else "",
            f"{row.wait_share:.0%}" if row.batches > WARM_BATCHES else "",
        )
    return table


def _story(board: Board) -> Any:
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", style="dim", no_wrap=True)
    grid.add_column()
    for when, sentence in board.story:
        colour = "red" if sentence.startswith("SIGKILL") else "default"
        grid.add_row(f"{when:.1f} s", f"[{colour}]{sentence}[/]")
    return grid


def _clock(seconds: float) -> str:
    return f"{seconds:6.1f} s"


__all__ = ["Display", "LiveDisplay", "PlainDisplay", "open_display"]
