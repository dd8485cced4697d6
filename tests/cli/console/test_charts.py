"""The console's SVG charts stay within their box for any figures."""

import re

import pytest

from rmq_spark.cli.console.history import Point
from rmq_spark.cli.console.markup.charts import chart, sparkline


@pytest.mark.parametrize("values", [[0, 0], [1, 5, 3], [-1, 2], [1e18, 1], [0.001, 0.002]], ids=str)
def test_sparkline_stays_within_its_box(values):
    points = [Point(1_000 + at, value) for at, value in enumerate(values)]
    drawn = re.search(r'class="line" d="M([^"]*)"', sparkline(points, "says").markup)[1]
    places = [tuple(map(float, each.split(","))) for each in drawn.split(" L")]
    assert len(places) == len(values)
    assert all(0 <= x <= 240 and 0 <= y <= 60 for x, y in places)
    assert [places[0][0], places[-1][0]] == [0, 240]


def test_chart_title_is_escaped_and_shows_the_last_value():
    made = chart("<b>", [Point(0, 1), Point(5, 3)], lambda value: f"{value:.0f}/s").markup
    assert "&lt;b&gt;: 3/s" in made
    assert 'data-points="0|1/s 5|3/s"' in made
    assert "max 3/s" in made
    waiting = chart("in", [], str).markup
    assert 'class="waiting"' in waiting
    assert "collecting data" in waiting


def test_chart_with_a_scale_maximum_is_drawn_against_it():
    points = [Point(0, 0.2), Point(5, 0.2)]
    heights = {
        full: float(
            re.search(
                r'class="line" d="M0.0,([\d.]+)', chart("x", points, str, scale_max=full).markup
            )[1]
        )
        for full in (None, 1.0)
    }
    assert heights == {None: 3.0, 1.0: 46.2}
