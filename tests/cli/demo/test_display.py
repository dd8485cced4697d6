"""The demo's display: lines without a terminal, one panel in a terminal, and the picture."""

import sys

from support.programs.terminals import written_to_a_terminal

from rmq_spark.cli.demo.display import (
    DemoBatch,
    DemoFigures,
    LineDisplay,
    save_picture,
    screen_lines,
    summary,
)


def figures():
    batches = [DemoBatch(1_000, 101.0 + at, 0.5, 0.3, 0.4) for at in range(2)]
    return DemoFigures(30, 100.0, 2_500, batches)


def test_line_display_prints_each_batch_and_note_once(capsys):
    display, shown = LineDisplay(), figures()
    with display.show_status("it starts"):
        pass
    display.show(shown, "demo", 102.0)
    shown.set_note("it is slower now")
    display.show(shown, "demo", 103.0)
    display.show(shown, "demo", 104.0)
    display.end(["all was read"])
    assert capsys.readouterr().out.splitlines() == [
        "it starts",
        "batch 0: 1,000 rows in 0.50 s, latency p50 300 ms, p95 400 ms",
        "batch 1: 1,000 rows in 0.50 s, latency p50 300 ms, p95 400 ms",
        "it is slower now",
        "",
        "all was read",
    ]


def test_demo_picture_shows_panel_and_summary_and_loads_nothing(tmp_path):
    shown = figures()
    save_picture(tmp_path / "demo.svg", screen_lines(shown, 104.0), "demo-orders", summary(shown))
    drawn = (tmp_path / "demo.svg").read_text(encoding="utf-8").replace("&#160;", " ")
    assert "demo-orders" in drawn
    assert "2,500" in drawn
    assert "NOT the same number" in drawn
    assert "url(http" not in drawn


def test_terminal_display_redraws_one_panel():
    program = (
        "from rmq_spark.cli.demo.display import TerminalDisplay\n"
        "from rmq_spark.cli.demo.display import DemoBatch, DemoFigures\n"
        "shown = DemoFigures(30, 100.0, 7, [DemoBatch(1, 101.0, 0.5, 0.3, 0.4)])\n"
        "display = TerminalDisplay()\n"
        "with display.show_status('it starts'): pass\n"
        "display.show(shown, 'demo', 101.0)\n"
        "shown.sent = 77\n"
        "display.show(shown, 'demo', 102.0)\n"
        "display.end(['the end'])\n"
    )
    text = written_to_a_terminal([sys.executable, "-c", program])
    assert text.count("╭") >= 2
    assert text.index("77 ") > text.index("7 ")
    assert text.rstrip().endswith("the end")
