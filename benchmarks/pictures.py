"""Draws the pictures of docs/speed.md from the results in benchmarks/results.

    python -m benchmarks.pictures

The page, not the picture, says how it was measured. A picture shows all results that it gets,
including those that are slower than a peer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt  # the kind of picture has to be chosen before
from matplotlib.axes import Axes

_RESULTS: Final = Path(__file__).parent / "results"
_DOCS: Final = Path(__file__).parents[1] / "docs" / "assets"
_OURS: Final = "#3f51b5"
_PEER: Final = "#b0b6c3"
_INK: Final = "#37474f"
_STYLE: Final[Any] = {
    "axes.edgecolor": _PEER,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.facecolor": "white",  # it is read on dark pages as well
    "font.size": 10,
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
    "svg.hashsalt": "rocketpoll",  # the same results give the same bytes
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}
_GROWING: Final = (("send_us", _OURS, "a send"), ("pulled_us", "#00897b", "a message pulled"))
_CHUNK: Final = ("chunk_us", "#ef6c00", "a message of a chunk")
_FLATNESS: Final = {"messages": "messages in the log", "clients": "clients", "queues": "queues"}
_GROWTH: Final = {"executors": "executors", "queues": "queues", "messages": "messages in the log"}


def draw_all(results: Path = _RESULTS, into: Path = _DOCS) -> list[Path]:
    """Draw every picture; return their files."""
    pictures: dict[str, Callable[[Path], None]] = {
        "speed-read": _draw_reading,
        "speed-written": _draw_writing,
        "speed-broker": _draw_broker,
        "speed-latency": _draw_latency,
        "speed-growth": _draw_flatness,
        "speed-scale": _draw_scale,
    }
    paths = []
    with mpl.rc_context(_STYLE):
        for name, draw in pictures.items():
            draw(results)
            paths.append(into / f"{name}.svg")
            plt.savefig(paths[-1], metadata={"Date": None}, bbox_inches="tight", pad_inches=0.15)
            plt.close()
    return paths


def read_results(results: Path, benchmark: str) -> list[dict[str, Any]]:
    """Return the rows of a benchmark beside a peer, each with ``ours`` and ``peer``: medians."""
    rows = json.loads((results / f"{benchmark}.json").read_text(encoding="utf-8"))["results"]
    for row in rows:
        row |= {side["role"]: side["median"] for side in row["sides"].values()}
    return list(rows)


def _draw_reading(results: Path) -> None:
    prefix = "ingest, AvailableNow, "
    _draw_rows(results, prefix, {"addBatch"}, "addBatch, 4 queues or partitions", height=3.0)


def _draw_writing(results: Path) -> None:
    figures = {"whole write", "addBatch"}
    _draw_rows(results, "a ", figures, "a whole write and addBatch, rows of 100 B", height=2.0)


def _draw_rows(
    results: Path, prefix: str, figures: Collection[str], what: str, *, height: float
) -> None:
    rows = [
        row
        for row in read_results(results, "spark")
        if row["subject"].startswith(prefix) and row["figure"] in figures
    ]
    _, axes = plt.subplots(figsize=(7.2, height))
    names = [row["subject"].removeprefix(prefix) for row in rows]
    labelled = [(f"{row['ours'] / 1e6:.2f} M", f"{row['peer'] / 1e6:.2f} M") for row in rows]
    pairs = [(row["ours"] / 1e6, row["peer"] / 1e6) for row in rows]
    _bars(axes, names, pairs, labelled, "Kafka")
    axes.set_xlabel(f"million rows a second, {what}")


def _draw_broker(results: Path) -> None:
    rows = [
        row
        for row in read_results(results, "broker")
        if row["ratio"] and row["figure"] in {"messages", "p50", "from exec"}
    ]
    _, axes = plt.subplots(figsize=(7.2, 3.6))
    places = range(len(rows), 0, -1)
    ratios = [row["ratio"] for row in rows]
    axes.set_xscale("log")
    colors = [_OURS if ratio >= 1 else "#ef6c00" for ratio in ratios]
    axes.hlines(places, 1, ratios, colors=colors, linewidth=3)
    axes.scatter(ratios, places, c=colors, zorder=3)
    axes.axvline(1, color=_INK, linewidth=1)
    for place, ratio in zip(places, ratios, strict=True):
        side, align = (1.09, "left") if ratio >= 1 else (1 / 1.09, "right")
        axes.text(ratio * side, place, f"{ratio:.2f}", ha=align, va="center")
    names = [
        row["subject"].removeprefix("Java ").replace("pullBatchSize", "batches of") for row in rows
    ]
    axes.set_yticks(list(places), [name.removesuffix(", 200 a second") for name in names])
    axes.set_xticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
    axes.minorticks_off()
    axes.set_xlim(0.5, 30)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("times as good as RocketMQ in the same run")


def _draw_latency(results: Path) -> None:
    wanted = {
        "Java push consumer, send to listener, 200 a second",
        "a held pull, from send to answer",
    }
    rows = [row for row in read_results(results, "broker") if row["subject"] in wanted]
    _, axes = plt.subplots(figsize=(7.2, 3.2))
    short = {name: name.removeprefix("Java ").partition(",")[0] for name in wanted}
    names = [f"{short[row['subject']]}, {row['figure']}" for row in rows]
    pairs = [(row["ours"], row["peer"]) for row in rows]
    labelled = [(f"{ours:.2f} ms", f"{peer:.2f} ms") for ours, peer in pairs]
    _bars(axes, names, pairs, labelled, "RocketMQ")
    axes.set_xlabel("milliseconds from send to consumer")


def _draw_flatness(results: Path) -> None:
    rows = json.loads((results / "flatness.json").read_text(encoding="utf-8"))["results"]
    _, all_axes = plt.subplots(1, len(_FLATNESS), figsize=(7.2, 2.6), sharey=True)
    for axes, (kind, title) in zip(all_axes, _FLATNESS.items(), strict=True):
        of_kind = [row for row in rows if row["kind"] == kind]
        _plot_costs(axes, title, [row["count"] for row in of_kind], of_kind)
    all_axes[0].set_ylim(bottom=0)
    all_axes[0].set_ylabel("µs of the broker's loop")
    all_axes[0].legend(frameon=False, fontsize=9, loc="upper left")


def _draw_scale(results: Path) -> None:
    rows = json.loads((results / "growth.json").read_text(encoding="utf-8"))["results"]
    figure, all_axes = plt.subplots(1, len(_GROWTH), figsize=(7.2, 2.8), sharey=True)
    for axes, (kind, title) in zip(all_axes, _GROWTH.items(), strict=True):
        of_kind = [row for row in rows if row["kind"] == kind]
        _plot_costs(axes, title, [row["number"] for row in of_kind], of_kind)
        axes.set_yscale("log")
        axes.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        axes.minorticks_off()
        axes.grid(axis="y", color="#eceff1")
        axes.set_axisbelow(True)
    all_axes[0].set_ylim(0.1, 300)
    all_axes[0].set_ylabel("µs of the broker's loop")
    lines = {line.get_label(): line for axes in all_axes for line in axes.get_lines()}
    figure.legend(lines.values(), lines.keys(), frameon=False, loc="upper center", ncols=3)
    figure.subplots_adjust(top=0.78, wspace=0.12)


def _plot_costs(
    axes: Axes, title: str, counts: Sequence[int], rows: Sequence[dict[str, Any]]
) -> None:
    """Draw the costs that the rows have, each as a line over a logarithmic count."""
    for figure, color, name in (*_GROWING, _CHUNK):
        if rows[0].get(figure) is not None:
            axes.plot(counts, [row[figure] for row in rows], "o-", color=color, label=name)
    axes.set_xscale("log")
    axes.set_xticks(counts, [_short(count) for count in counts])
    axes.minorticks_off()
    axes.set_title(title)


def _short(count: int) -> str:
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count // size}{letter}"
    return str(count)


def _bars(
    axes: Axes,
    names: Sequence[str],
    pairs: Sequence[tuple[float, float]],
    labelled: Sequence[tuple[str, str]],
    peer: str,
) -> None:
    """Draw two bars for each name, ours above, with their figures at their ends."""
    thick = 0.38
    for side, (color, label) in enumerate(((_OURS, "rocketpoll"), (_PEER, peer))):
        places = [len(names) - at - (thick if side else 0) for at in range(len(names))]
        bars = axes.barh(places, [pair[side] for pair in pairs], thick, color=color, label=label)
        axes.bar_label(bars, [pair[side] for pair in labelled], padding=4, fontsize=9)
    axes.set_yticks([len(names) - at - thick / 2 for at in range(len(names))], names)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)


if __name__ == "__main__":
    draw_all()
