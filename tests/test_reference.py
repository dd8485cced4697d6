"""The generated reference pages are complete and up to date."""

import re
import runpy
from pathlib import Path

import pytest

import rocketpoll
from rmq_spark.cli.main import SECTIONS
from rmq_spark.spark.options.table import OPTIONS
from rocketpoll import aio, errors, spark
from rocketpoll.broker.settings.settings import KEYS

ROOT = Path(__file__).parent.parent
GENERATED = runpy.run_path(str(ROOT / "site" / "reference.py"))["GENERATED"]
CODE = {
    "reference/commands.md": {name for leaves in SECTIONS.values() for name in leaves},
    "reference/options.md": set(OPTIONS),
    "reference/settings.md": set(KEYS),
    "reference/python.md": {name for name in rocketpoll.__all__ if name[0] != "_"},
    "reference/aio.md": set(aio.__all__),
    "reference/errors.md": set(errors.__all__),
    "reference/spark.md": set(spark.__all__),
    "adr/README.md": {path.name for path in (ROOT / "docs" / "adr").glob("*.md")},
}
PYTHON = r"^(?::::.*\.|### )(\w+)$"
GROUPS = (
    "reference/producers.md",
    "reference/consumers.md",
    "reference/admin.md",
    "reference/testing.md",
)
NAMED = {
    "reference/commands.md": r"^### (\S+)$",
    "reference/python.md": r'\n\n<a id="[\w.]+" href="\w+\.html#[\w.]+"><code>(\w+)</code></a>',
    "reference/aio.md": PYTHON,
    "reference/errors.md": PYTHON,
    "reference/spark.md": PYTHON,
    "adr/README.md": r"\]\((.*)\)$",
}


def rows_of(page):
    return re.findall(NAMED.get(page, r"^\| `([\w.]+)` \|"), GENERATED[page](), re.MULTILINE)


@pytest.mark.parametrize("page", CODE)
def test_reference_page_names_each_item_of_the_code_once(page):
    assert sorted(rows_of(page)) == sorted(CODE[page])


def test_each_public_name_is_described_on_one_page_of_a_group():
    described = [
        name for page in GROUPS for name in re.findall(PYTHON, GENERATED[page](), re.MULTILINE)
    ]
    assert sorted(described) == sorted(CODE["reference/python.md"])


def test_metrics_page_and_operating_guide_name_the_same_metrics():
    guide = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `((?:rocketmq|rocketpoll)_\w+)`", guide, re.MULTILINE))
    rows = rows_of("reference/metrics.md")
    assert {name for name in rows if not name.startswith("process_")} == told
    assert len(rows) == len(set(rows))


def test_generated_pages_are_in_the_navigation():
    assert set(GENERATED) == {*CODE, *GROUPS, "reference/metrics.md"}
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert [page for page in GENERATED if f": {page}\n" not in navigation] == []
