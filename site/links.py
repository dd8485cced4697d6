"""Links of the project's pages: where each leads on the site, and what it is called there.

Knows nothing of mkdocs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_LINK: Final = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_BY_FILE: Final = re.compile(r"\[([\w./-]+\.md)\](?=\(([^)\s#]+))")
_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)
_PAGES: Final = (".md", ".ipynb")


def target_of(path: Path, root: Path) -> str:
    """Return where a file or folder of the project is on the site, as a path of a source."""
    name = path.relative_to(root).as_posix()
    if name.startswith("docs/"):
        return name.removeprefix("docs/") + ("/README.md" if path.is_dir() else "")
    if path.is_dir():
        return f"files/{name}.txt"
    if path.suffix in _PAGES:
        return f"project/{Path(name).with_suffix('.md').as_posix()}"
    return f"files/{name}.txt"


def origin_of(src_uri: str, root: Path) -> Path:
    """Return the file of the project that a page of the site was made of."""
    if src_uri.startswith("project/"):
        path = root / src_uri.removeprefix("project/")
        return path if path.exists() else path.with_suffix(".ipynb")
    return root / "docs" / src_uri


def outside(path: Path, root: Path) -> set[Path]:
    """Return the files and folders that a page links to and that mkdocs does not see."""
    found = {_found(path, match[1]) for match in _LINK.finditer(_text_of(path))}
    docs = root / "docs"
    return {
        each
        for each in found
        if each is not None and each.is_relative_to(root) and not each.is_relative_to(docs)
    }


def rewritten(markdown: str, origin: Path, src_uri: str, root: Path) -> str:
    """Return a page with its links led to where their targets are on the site."""

    def lead(match: re.Match[str]) -> str:
        path = _found(origin, match[1])
        if path is None or not path.is_relative_to(root):
            return match[0]
        to = os.path.relpath(target_of(path, root), Path(src_uri).parent.as_posix())
        return to + (match[2] or "")

    return _LINK.sub(lead, markdown)


def titled(markdown: str, origin: Path) -> str:
    """Return a page on which a link that is called by its file's name has the title of that file.

    Who reads the files needs their names; a reader of the site sees none of them.
    """

    def call(match: re.Match[str]) -> str:
        path = _found(origin, match[2])
        title = path and _TITLE.search(path.read_text(encoding="utf-8"))
        return f"[{title[1]}]" if title else match[0]

    return _BY_FILE.sub(call, markdown)


def _found(origin: Path, target: str) -> Path | None:
    """Return what a link leads to, a folder's README where it has one; None if it is not there."""
    path = Path(os.path.normpath(origin.parent / target))
    if path.is_dir() and (path / "README.md").exists():
        path /= "README.md"
    return path if path.exists() else None


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8").replace("\\n", "\n")  # as JSON has it
