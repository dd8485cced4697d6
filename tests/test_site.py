"""The documentation site builds strictly, its links resolve, and quoted errors match the code."""

import ast
import inspect
import re
import types
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from support.programs.site_build import built, needs_mkdocs

import rocketpoll
from rocketpoll import (
    aio,
    errors,
    spark,
)
from rocketpoll.broker.settings.settings import KEYS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GROUPS = ("producers", "consumers", "admin", "testing")
ELEMENTS_MAX = 8_000
"""Maximum number of elements of a page; a browser shows that many within a second or two."""


class Links(HTMLParser):
    """The links of a page, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.targets = []
        self.names = set()
        self.feed(text)

    def handle_starttag(self, _, attributes):
        given = dict(attributes)
        self.names.update(filter(None, (given.get("id"), given.get("name"))))
        self.targets += filter(None, (given.get("href"), given.get("src")))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return built(tmp_path_factory.mktemp("site"))


def pages_of(site):
    return {page: Links(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}


@pytest.mark.deep
@needs_mkdocs
def test_site_links_lead_to_existing_places(site):
    pages = pages_of(site)
    lost = []
    for page, links in pages.items():
        if page.name == "404.html":  # its links are relative to a server's root
            continue
        for target in links.targets:
            if re.match(r"https?:|mailto:|data:|javascript:", target):
                continue
            path, _, name = unquote(target).partition("#")
            to = (page.parent / path).resolve() if path else page
            known = pages[to].names if to in pages else None
            if not to.exists() or (name and known is not None and name not in known):
                lost.append((page.relative_to(site).as_posix(), target))
    assert lost == []


@pytest.mark.deep
@needs_mkdocs
def test_page_404_offers_working_links(site):
    links = Links((site / "404.html").read_text(encoding="utf-8").partition("<h1>")[2])
    ways = [target for target in links.targets if target.startswith("/")]
    assert len(ways) >= 4
    assert [way for way in ways if not (site / way[1:]).exists()] == []


@pytest.mark.deep
@needs_mkdocs
def test_llms_txt_lists_each_page_once_with_a_sentence(site):
    listed = re.findall(
        r"^- \[(.+)\]\((\S+)\): (\S.*)$",
        (site / "llms.txt").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    pages = {page.relative_to(site).as_posix() for page in site.rglob("*.html")} - {"404.html"}
    assert sorted(url for _, url, _ in listed) == sorted(pages)
    assert [title for title, _, says in listed if says == title] == []


@pytest.mark.deep
@needs_mkdocs
def test_llms_txt_follows_the_titles_of_the_navigation(site):
    text = (site / "llms.txt").read_text(encoding="utf-8")
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    titles = re.findall(r"^  - (.+):$", navigation, re.MULTILINE)
    assert set(titles) <= set(re.findall(r"^## (.+)$", text, re.MULTILINE))
    how_to = text.partition("## How to\n")[2].partition("\n## ")[0]
    listed = re.findall(r"\]\((.+)\.html\)", how_to)
    in_order = re.findall(r": (\S+)\.md$", navigation.partition("How to:")[2], re.MULTILINE)
    assert listed == in_order[: len(listed)]
    assert len(listed) > 10


@pytest.mark.deep
@needs_mkdocs
def test_site_loads_nothing_from_other_hosts(site):
    asked = r"""(?:<script|<img|<link rel="stylesheet")[^>]+(?:src|href)="(https?:[^"]+)"""
    for page in pages_of(site):
        assert re.findall(asked, page.read_text(encoding="utf-8")) == []


@pytest.mark.deep
@needs_mkdocs
def test_links_are_called_by_the_titles_of_pages(site):
    shown = (site / "index.html").read_text(encoding="utf-8")
    assert re.findall(r">[\w./-]+\.md</a>", shown) == []
    assert ">Exactly-once delivery</a>" in shown


@pytest.mark.deep
@needs_mkdocs
def test_all_settings_and_commands_are_in_the_reference(site):
    settings = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    assert [key for key in KEYS if f"<code>{key}</code>" not in settings] == []
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for command in ("produce", "topic create", "group describe", "sink list", "broker"):
        assert f"Usage: rocketpoll {command}" in commands


@pytest.mark.deep
@needs_mkdocs
@pytest.mark.parametrize(
    ("page", "module"),
    [("python", rocketpoll), ("aio", aio), ("errors", errors), ("spark", spark)],
)
def test_public_names_and_methods_have_anchors_in_the_reference(site, page, module):
    """Under the paths from which programs import them, including inherited methods."""
    names = Links((site / "reference" / f"{page}.html").read_text(encoding="utf-8")).names
    wanted = set()
    for name in module.__all__:
        kind = getattr(module, name)
        is_elsewhere = module is not errors and name in errors.__all__
        if not inspect.isclass(kind) or kind.__name__ != name or is_elsewhere:
            continue
        path = f"{module.__name__}.{name}"
        wanted |= {path, *(f"{path}.{each}" for each in public_methods(kind))}
    assert sorted(wanted - names) == []
    assert len(wanted) > 10


def public_methods(kind):
    """Return the methods of a class and of its bases of ours, without those of Python's types."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in {"rocketpoll", "rmq_spark"}:
            yield from (
                name
                for name, found in vars(base).items()
                if name[0] != "_" and isinstance(found, types.FunctionType | property)
            )


@pytest.mark.deep
@needs_mkdocs
def test_the_page_of_all_names_leads_to_each_anchor_of_the_pages_of_groups(site):
    """A page with all documentation would be slow to load; the anchors stay, because others may
    link to them."""
    reference = site / "reference"
    described = set()
    for page in GROUPS:
        text = (reference / f"{page}.html").read_text(encoding="utf-8")
        assert len(re.findall(r"<[a-z]", text)) < ELEMENTS_MAX
        names = {name for name in Links(text).names if name.startswith("rocketpoll.")}
        described |= {f"{page}.html#{name}" for name in names}
    index = Links((reference / "python.html").read_text(encoding="utf-8"))
    assert described <= set(index.targets)
    assert {each.partition("#")[2] for each in described} <= index.names
    assert len(described) > 250


@pytest.mark.deep
@needs_mkdocs
def test_examples_of_docstrings_are_code(site):
    page = (site / "reference" / "producers.html").read_text(encoding="utf-8")
    assert page.count("<summary>Example</summary>") > 0
    examples = re.findall(r"<summary>Example</summary>\s*(<\w+)", page)
    assert set(examples) == {"<div"}  # a block of code, not a paragraph


def templates():
    """Return the texts in the sources, with dots in place of values."""
    for room in ("rmq_spark", "broker"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [
                        each.value if isinstance(each, ast.Constant) else "..."
                        for each in node.values
                    ]
                    yield "".join(map(str, parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield re.sub(r"\{\w+\}", "...", node.value)


OF_SPARK = {
    "DATA_SOURCE_NOT_FOUND",
    "Failed to find the data source: rocketpoll",
    "[PYTHON_DATA_SOURCE_ERROR] ...: Traceback (most recent call last):",
    "Python worker failed to connect back",
}
"""Headings that quote errors of Spark."""


def test_errors_quoted_in_troubleshooting_exist_in_the_code():
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (`.+`)$", page, re.MULTILINE)
    quoted = [text for heading in headings for text in re.findall(r"`([^`]+)`", heading)]
    assert len(quoted) >= 20
    known = "\n".join(templates())
    assert [text for text in quoted if text not in known and text not in OF_SPARK] == []


def test_each_docs_page_is_in_the_navigation_or_a_known_exception():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    pages = {
        path.relative_to(DOCS).as_posix()
        for path in [*DOCS.glob("*.md"), *DOCS.glob("how-to/*.md")]
    }
    assert pages - set(re.findall(r"\S+\.md", navigation)) == {"releasing.md"}
