"""Examples in docstrings as blocks of code: they stand there indented, and without a prompt."""

from __future__ import annotations

import re
from textwrap import indent
from typing import Any, Final

import griffe

_EXAMPLE: Final = re.compile(r"^Example:\n((?:[ ]{4}.*\n|\s*\n)*[ ]{4}.*)$", re.MULTILINE)


class DocstringExamples(griffe.Extension):
    """Marks the code under each `Example:` as Python."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object that has been read from the sources."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(match: re.Match[str]) -> str:
    return f"Example:\n{indent('```python', '    ')}\n{match[1]}\n{indent('```', '    ')}"
