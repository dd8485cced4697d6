"""What mkdocs does beyond mkdocs.yml: generated pages, links that leave docs/, and llms.txt.

The pages in docs/ link to files of the project, as a reader on a disk or in a repository needs it.
On the site such a link leads to a page (Markdown, notebooks) or to a copy of the file as text,
and is called by the page's title where it was called by the name of a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any, Final

from links import origin_of, outside, rewritten, target_of, titled
from mkdocs.structure.files import File, Files
from notebook_pages import page_of
from reference import GENERATED

_WORDS_MIN: Final = 7  # "Context." and "A body is bytes." say little of a page
_WEIGHTS: Final = {
    "how-to/": 4,
    "troubleshooting.md": 4,
    "install.md": 3,
    "security.md": 2,
    "speed.md": 2,
    "adr/": 0.3,
    "project/CHANGELOG.md": 0.3,
}
"""What the search puts first, and last, of pages that have the same words."""
_WIDE: Final = frozenset({"from-rocketmq.md"})
"""Pages of wide tables, which get the room of the table of contents."""

_ALONE: Final = "More"
_OPTIONAL: Final = "Optional"
_FOR_MACHINES: Final = (
    "- Not on PyPI yet: in a clone, `pip install '.[spark]'`, without Spark `pip install .`.",
    "- Programs import `rocketpoll`, nothing below `rmq_spark`.",
    '- In Spark it is `format("rocketpoll")`; options have the names of its Kafka source\'s.',
    "- `EmbeddedBroker` is for tests and notebooks, `rocketpoll broker` runs standalone.",
    "- The page Troubleshooting explains errors by their text.",
)

ROOT: Final = Path(__file__).parent.parent


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and what pages link to outside docs/."""
    for src_uri, make in GENERATED.items():
        files.append(File.generated(config, src_uri, content=make()))
    waiting = [ROOT / "docs" / each.src_uri for each in files.documentation_pages()]
    waiting = [path for path in waiting if path.exists()]
    waiting += [ROOT / "notebooks" / "README.md", ROOT / "CHANGELOG.md", ROOT / "README.md"]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.is_relative_to(ROOT / "docs"):
            _add(files, config, path)
        if path.suffix in {".md", ".ipynb"}:
            new = outside(path, ROOT) - seen
            seen |= new
            waiting += sorted(new)
    return files


def _add(files: Files, config: Any, path: Path) -> None:
    src_uri = target_of(path, ROOT)
    if path.is_dir():
        content: str = "".join(f"{each.name}\n" for each in sorted(path.iterdir()))
    elif path.suffix == ".ipynb":
        content, pictures = page_of(path)
        for name, picture in pictures.items():
            uri = f"{Path(src_uri).parent.as_posix()}/{name}"
            files.append(File.generated(config, uri, content=picture))
    else:
        content = path.read_text(encoding="utf-8")
    files.append(File.generated(config, src_uri, content=content))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Have links lead to what is on the site and be called as it is there; weigh the page."""
    src_uri = page.file.src_uri
    weight = next((_WEIGHTS[each] for each in _WEIGHTS if src_uri.startswith(each)), 1)
    page.meta["search"] = {"boost": weight}
    if src_uri in _WIDE:
        page.meta["hide"] = ["toc"]
    origin = origin_of(src_uri, ROOT)
    return rewritten(titled(markdown, origin), origin, src_uri, ROOT)


def on_nav(nav: Any, **_: Any) -> None:
    """Note under which of the navigation's titles each page is."""
    for top in nav.items:
        for page in [top] if top.is_page else _pages_within(top):
            _sections[page.file.src_uri] = top.title if top.is_section else _ALONE


def _pages_within(section: Any) -> Iterator[Any]:
    for each in section.children:
        if each.is_page:
            yield each
        else:
            yield from _pages_within(each)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Note the title of a page, and how it begins, for llms.txt."""
    listed = f"- [{page.title}]({page.file.url}): {_first_words(html) or page.title}"
    _pages[page.file.src_uri] = listed
    return html


def on_post_build(config: Any) -> None:
    """Write llms.txt: each page of the site with its title and how it begins.

    Its form is that of llmstxt.org: whoever is short of room leaves out what is optional.
    """
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "", *_FOR_MACHINES]
    for section in (*dict.fromkeys(_sections.values()), _OPTIONAL):
        lines += ["", f"## {section}", ""]
        if section == _OPTIONAL:
            lines += [_pages[each] for each in sorted(_pages.keys() - _sections.keys())]
        else:
            lines += [_pages[each] for each in _sections if _sections[each] == section]
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _pages.clear()
    _sections.clear()


_pages: dict[str, str] = {}
_sections: dict[str, str] = {}


def _first_words(html: str) -> str:
    """Return how a page begins: whole sentences, as many as say something; empty if none does."""
    for paragraph in re.findall(r"<p>(.*?)</p>", html, re.DOTALL):
        text = " ".join(unescape(re.sub(r"<[^>]+>", "", paragraph)).split())
        begun = ""
        for sentence in re.split(r"(?<=[^.][.?!])\s", text):
            begun = f"{begun} {sentence}".strip()
            if len(begun.split()) >= _WORDS_MIN:
                return begun
    return ""
