"""Notebooks as pages: their texts, their code, and what their cells have shown."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any


def page_of(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by their names."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = b64decode(data["image/png"])
                parts.append(f"![{_title_of(source)}]({name})")
            else:
                parts.append(_shown(output, data))
    return "\n\n".join(parts) + "\n", pictures


def _title_of(source: str) -> str:
    """Return the title that a cell gives its plot, for those who do not see it."""
    titled = re.search(r'title=f?"([^"]+)"', source)
    return titled[1] if titled else "plot"


def _shown(output: Any, data: Any) -> str:
    """Return a table as HTML and everything else as text."""
    if "text/html" in data:
        html = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)
        return "\n".join(line for line in html.splitlines() if line.strip())
    text = "".join(data.get("text/plain", output.get("text", "")))
    return f"```text\n{text.rstrip()}\n```"
