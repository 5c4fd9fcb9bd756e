"""Plots as inline SVG: no script, no file beside them, readable on a phone, in light and dark.

Each is 360 units wide, as a small phone is, so its letters are no smaller there than those around
it. Colours are those of the page's style sheet, by class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 8, 26, 44
"""Margins around the drawing: numbers stand to the left of it, names below, and what both axes are
of above it and at the bottom."""


class Axes(NamedTuple):
    """What the axes are of.

    Attributes:
        across: What the names below are.
        up: What the heights are.
    """

    across: str
    up: str


LINE = 22
"""Between two horizontal bars."""


class PlotSeries(NamedTuple):
    """Heights that are drawn in one colour.

    Attributes:
        name: What they are.
        heights: One for each name on the axis; None = there is none.
        marks: Drawn as a short line over the bar of the same name, such as a percentile.
    """

    name: str
    heights: Sequence[float | None]
    marks: Sequence[float | None] = ()


def columns(
    title: str, names: Sequence[str], series: Sequence[PlotSeries], axes: Axes, unit: str = ""
) -> str:
    """Return upright bars, those of one name side by side.

    Args:
        title: What is drawn, for those who do not see it.
        names: What stands below the bars; as many of them as there is room for.
        series: What is drawn.
        axes: What the axes are of.
        unit: `%` shows shares as percentages.
    """
    every = [height for each in series for height in (*each.heights, *each.marks)]
    top = _round_up(max((height for height in every if height is not None), default=0.0))
    drawn = [*_grid(top, unit)]
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(names))
    bar = slot * 0.84 / max(1, len(series))
    for number, each in enumerate(series):
        for place, height in enumerate(each.heights):
            if height is None:
                continue
            x = LEFT + place * slot + slot * 0.08 + number * bar
            y = _y(height, top)
            said = escape(f"{names[place]}, {each.name}: {shown(height, unit)}")
            drawn.append(
                f'<rect class="s{number}" x="{x:.1f}" y="{y:.1f}" width="{max(bar - 1, 0.8):.1f}" '
                f'height="{HEIGHT - BOTTOM - y:.1f}"><title>{said}</title></rect>'
            )
            mark = each.marks[place] if each.marks else None
            if mark is not None:
                at = _y(mark, top)
                drawn.append(
                    f'<line class="mark" x1="{x:.1f}" x2="{x + bar - 1:.1f}" '
                    f'y1="{at:.1f}" y2="{at:.1f}"/>'
                )
    drawn += [*_names(names, slot), *_axes(axes)]
    return _svg(title, drawn, HEIGHT)


def band(
    title: str,
    names: Sequence[str],
    mean: Sequence[float],
    least: Sequence[float],
    most: Sequence[float],
    axes: Axes,
) -> str:
    """Return a line of means in the band between the least and the most; from 0 up.

    Args:
        title: What is drawn, for those who do not see it.
        names: What stands below the points; as many of them as there is room for.
        mean: The line, in shares of 1.
        least: The lower edge of the band.
        most: Its upper edge.
        axes: What the axes are of.
    """
    top = _round_up(max(most, default=1.0))
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(names))

    def points(heights: Sequence[float]) -> list[str]:
        return [
            f"{LEFT + (place + 0.5) * slot:.1f},{_y(height, top):.1f}"
            for place, height in enumerate(heights)
        ]

    area = " ".join([*points(most), *reversed(points(least))])
    drawn = [
        *_grid(top, "%"),
        f'<polygon class="b0" points="{area}"/>',
        f'<polyline class="l0" points="{" ".join(points(mean))}"/>',
        *_names(names, slot),
        *_axes(axes),
    ]
    return _svg(title, drawn, HEIGHT)


def line(
    title: str,
    names: Sequence[str],
    heights: Sequence[float | None],
    axes: Axes,
    unit: str = "",
) -> str:
    """Return points that a line joins; arguments as for `columns`."""
    known = [height for height in heights if height is not None]
    top, floor = max(known, default=1.0), min(known, default=0.0)
    room = max((top - floor) * 0.15, abs(top) * 1e-4)
    top, floor = top + room, floor - room
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(names))
    points = [
        (LEFT + (place + 0.5) * slot, _y(height - floor, top - floor), place)
        for place, height in enumerate(heights)
        if height is not None
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    drawn = [*_grid(top, unit, floor), f'<polyline class="l0" points="{path}"/>']
    for x, y, place in points:
        said = escape(f"{names[place]}: {shown(heights[place] or 0, unit)}")
        drawn.append(
            f'<circle class="s0" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{said}</title></circle>'
        )
    drawn += [*_names(names, slot), *_axes(axes)]
    return _svg(title, drawn, HEIGHT)


def lying(title: str, names: Sequence[str], heights: Sequence[float], said: Sequence[str]) -> str:
    """Return bars from left to right, each with its name above it.

    Args:
        title: What is drawn, for those who do not see it.
        names: Of the bars.
        heights: How long they are.
        said: What stands beside each name.
    """
    longest = max([*heights, 1e-12])
    drawn = []
    for number, (name, height, words) in enumerate(zip(names, heights, said, strict=True)):
        y = 14 + number * 2 * LINE
        drawn.append(f'<text class="name" x="0" y="{y}">{escape(_cut(name))}</text>')
        drawn.append(f'<text class="end" x="{WIDTH}" y="{y}">{escape(words)}</text>')
        width = max(1.0, height / longest * WIDTH)
        drawn.append(f'<rect class="s0" x="0" y="{y + 6}" width="{width:.1f}" height="12"/>')
    return _svg(title, drawn, len(names) * 2 * LINE)


def shown(height: float, unit: str) -> str:
    """Return a height as it stands at an axis."""
    if unit == "%":
        digits = 2 if 0 < height < 0.01 else 1 if 0 < height < 0.1 else 0
        return f"{height:.{digits}%}"
    if height == int(height):
        for power, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
            if height >= power:
                return f"{height / power:.3g}{letter}"
        return f"{int(height)}"
    return f"{height:.4g}"


def _svg(title: str, drawn: Sequence[str], height: float) -> str:
    inner = "".join(drawn)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{inner}</svg>"
    )


def _grid(top: float, unit: str, floor: float = 0.0) -> Iterator[str]:
    for part in range(5):
        height = floor + (top - floor) * part / 4
        y = _y(part / 4, 1.0)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="end" x="{LEFT - 5}" y="{y + 4:.1f}">{shown(height, unit)}</text>'


def _names(names: Sequence[str], slot: float) -> Iterator[str]:
    """Yield names below the axis: each second, third, ... where they would touch."""
    widest = max(map(len, names), default=1) * 6.5 + 6
    every = max(1, -(-int(widest) // max(1, int(slot))))
    for place in range(0, len(names), every):
        x = LEFT + (place + 0.5) * slot
        y = HEIGHT - BOTTOM + 16
        yield f'<text class="mid" x="{x:.1f}" y="{y}">{escape(names[place])}</text>'


def _axes(axes: Axes) -> Iterator[str]:
    """Yield what the axes are of: above the one, and below the other."""
    yield f'<text class="name" x="0" y="12">{escape(axes.up)}</text>'
    below = HEIGHT - 6
    yield f'<text class="name end" x="{WIDTH - RIGHT}" y="{below}">{escape(axes.across)}</text>'


def _y(height: float, top: float) -> float:
    return HEIGHT - BOTTOM - height / top * (HEIGHT - BOTTOM - TOP) if top else HEIGHT - BOTTOM


def _round_up(height: float) -> float:
    """Return the next number whose quarters are short to write."""
    if height <= 0:
        return 1.0
    power = 1.0
    while power < height:
        power *= 10
    while power / 10 >= height:
        power /= 10
    return next(
        step * power for step in (0.12, 0.16, 0.2, 0.4, 0.6, 0.8, 1.0) if step * power >= height
    )


def _cut(name: str) -> str:
    return name if len(name) <= 28 else name[:27] + "…"
