"""What depends on where the project is kept: links of its metadata, and of the README within it.

A package index shows the README and resolves no relative link. The one place of the address is
`repository` in `[tool.rocketpoll]` of pyproject.toml: with it, links lead to the files of the
release there; without it, links become the text that they have. Everything else stands in
pyproject.toml and setup.cfg, and this must not know it.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
_RELATIVE = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:|#)([^)\s]+)\)")


def stated(metadata: str, name: str) -> str:
    """Return a text that stands on a line of its own in pyproject.toml; empty if it is not there.

    Python has a reader of TOML from 3.11 on.
    """
    found = re.search(rf'^{name} = "(.*)"$', metadata, re.MULTILINE)
    return found[1] if found else ""


def description(readme: str, repository: str, version: str) -> str:
    """Return the README with links that work wherever it is shown."""
    release = "HEAD" if "dev" in version else f"v{version}"

    def link(found: re.Match[str]) -> str:
        is_picture, text, path = found.groups()
        if repository:
            view = "raw" if is_picture else "blob"
            return f"{is_picture}[{text}]({repository}/{view}/{release}/{path})"
        return "" if is_picture else text

    return _RELATIVE.sub(link, readme)


def urls(repository: str) -> dict[str, str]:
    """Return the links beside the description; none where the address is not known."""
    if not repository:
        return {}
    return {
        "Repository": repository,
        "Documentation": f"{repository}/blob/HEAD/docs/README.md",
        "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def main() -> None:
    """Hand to setuptools what pyproject.toml calls dynamic."""
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    repository = stated(metadata, "repository").rstrip("/")
    setup(
        long_description=description(readme, repository, stated(metadata, "version")),
        long_description_content_type="text/markdown",
        project_urls=urls(repository),
    )


if __name__ == "__main__":
    main()
