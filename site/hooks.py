"""What mkdocs does beyond mkdocs.yml: generated pages, links that leave docs/, and llms.txt.

The pages in docs/ link to files of the project, as a reader on a disk or in a repository needs it.
On the site such a link leads to a page (Markdown, notebooks) or to a copy of the file as text,
and is called by the page's title where it was called by the name of a file.
"""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any, Final

from links import origin_of, outside, rewritten, target_of, titled
from mkdocs.structure.files import File, Files
from notebook_pages import page_of
from reference import GENERATED

_WORDS_MIN: Final = 2  # "Context." and "New here?" say nothing of a page

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
    """Have links lead to what is on the site, and be called as it is there."""
    origin = origin_of(page.file.src_uri, ROOT)
    return rewritten(titled(markdown, origin), origin, page.file.src_uri, ROOT)


def on_post_build(config: Any) -> None:
    """Write llms.txt: each page of the site with its title and its first sentence."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    lines += [f"- [{title}]({url}): {says}" for url, (title, says) in sorted(_pages.items())]
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _pages.clear()


_pages: dict[str, tuple[str, str]] = {}


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Note the title and the first sentence of a page for llms.txt."""
    _pages[page.file.url] = (page.title, _first_sentence(html) or page.title)
    return html


def _first_sentence(html: str) -> str:
    """Return the first sentence of a page that says something; empty if there is none."""
    for paragraph in re.findall(r"<p>(.*?)</p>", html, re.DOTALL):
        text = " ".join(unescape(re.sub(r"<[^>]+>", "", paragraph)).split())
        for sentence in re.split(r"(?<=[.?!])\s", text):
            if len(sentence.split()) > _WORDS_MIN:
                return sentence
    return ""
