"""Charts as inline SVG: a line over the last minutes, small in a row or wide in a card.

Charts are drawn in their own coordinates, and the browser stretches them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Final

from rmq_spark.cli.console.history import Point
from rmq_spark.cli.console.markup.html import Html, el

_WIDTH: Final = 240
_HEIGHT: Final = 60
_MARGIN: Final = 3

ValueFormat = Callable[[float], str]
COUNT: Final[ValueFormat] = "{:,.0f}".format


def sparkline(points: Sequence[Point], label: str) -> Html:
    """Return a small line for a row of a table; ``label`` is for screen readers and tooltips."""
    return _svg(points, "svg.spark", label)


def chart(
    title: str,
    points: Sequence[Point],
    format_value: ValueFormat,
    *,
    scale_max: float | None = None,
) -> Html:
    """Return a card with a line, the last figure and the largest one.

    The scale ends at ``scale_max``, such as 1 for a ratio, or at the largest figure.
    """
    last = format_value(points[-1].value) if points else "-"
    foot = [el("span"), el("span", "collecting data"), el("span")]
    if len(points) > 1:
        top = format_value(max(point.value for point in points))
        foot = [_clock(points[0]), el("span", f"max {top}"), _clock(points[-1])]
    return el(
        "figure.chart",
        el("figcaption", el("span.chart-title", title), el("span.chart-now", last)),
        _svg(points, "svg.plot", f"{title}: {last}", _marks(points, format_value), scale_max),
        el("div.chart-foot", foot),
    )


def _marks(points: Sequence[Point], format_value: ValueFormat) -> str | None:
    """Return times with their figures, for the script that shows the figure below the pointer."""
    if len(points) < 2:
        return None
    return " ".join(
        f"{point.timestamp_seconds:.0f}|{format_value(point.value).replace(' ', '_')}"
        for point in points
    )


def _svg(
    points: Sequence[Point],
    selector: str,
    label: str,
    marks: str | None = None,
    scale_max: float | None = None,
) -> Html:
    parts = [] if marks else [el("title", label)]
    if len(points) > 1:
        line = _line(points, scale_max or max(*(point.value for point in points), 1e-9))
        parts += [
            el("path.area", d=f"M{line[0][0]},{_HEIGHT} L{_path(line)} L{line[-1][0]},{_HEIGHT} Z"),
            el("path.line", d=f"M{_path(line)}", vector_effect="non-scaling-stroke"),
        ]
    else:
        middle = _HEIGHT - _MARGIN
        parts.append(
            el(
                "line.waiting",
                x1=0,
                x2=_WIDTH,
                y1=middle,
                y2=middle,
                vector_effect="non-scaling-stroke",
            )
        )
    return el(
        selector,
        *parts,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
        data_points=marks,
    )


def _line(points: Sequence[Point], top: float) -> list[tuple[float, float]]:
    """Return the points in the box: time from left to right, figures from 0 upwards."""
    first, last = points[0].timestamp_seconds, points[-1].timestamp_seconds
    room = _HEIGHT - 2 * _MARGIN
    return [
        (
            round((point.timestamp_seconds - first) / max(last - first, 1e-9) * _WIDTH, 1),
            round(_HEIGHT - _MARGIN - min(max(point.value, 0), top) / top * room, 1),
        )
        for point in points
    ]


def _path(line: Sequence[tuple[float, float]]) -> str:
    return " L".join(f"{x},{y}" for x, y in line)


def _clock(point: Point) -> Html:
    at = datetime.fromtimestamp(point.timestamp_seconds, timezone.utc).astimezone()
    return el("time.axis", f"{at:%H:%M:%S}", datetime=at.isoformat(timespec="milliseconds"))
