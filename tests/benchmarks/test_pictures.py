"""The pictures of docs/speed.md show the committed results, and the page shows all pictures."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import pictures

ROOT = Path(__file__).parents[2]


def words(svg):
    """Return the texts in a picture, without positions, which depend on fonts."""
    return re.findall(r"<text[^>]*>([^<]+)</text>", svg.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return pictures.draw_all(into=tmp_path_factory.mktemp("pictures"))


def test_benchmark_pictures_match_the_committed_results(drawn):
    for path in drawn:
        assert words(ROOT / "docs" / "assets" / path.name) == words(path), "run: make pictures"


def test_speed_page_shows_each_picture(drawn):
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\(assets/(\S+)\)", page)
    assert shown == [path.name for path in drawn]


def test_benchmark_picture_follows_its_results(drawn, tmp_path):
    for name in ("broker", "spark", "flatness", "growth"):
        text = (ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8")
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    report = json.loads((tmp_path / "spark.json").read_text(encoding="utf-8"))
    report["results"][0]["sides"]["rocketpoll"]["median"] = 9_870_000
    (tmp_path / "spark.json").write_text(json.dumps(report), encoding="utf-8")
    reading = next(path for path in pictures.draw_all(tmp_path, tmp_path) if "read" in path.name)
    assert "9.87 M" in words(reading)
    assert "9.87 M" not in words(next(path for path in drawn if "read" in path.name))
