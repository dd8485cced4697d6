"""Prints random texts of the product. Read them as somebody who has never seen it.

    python tools/prose.py docstrings 120     # of modules, classes and functions
    python tools/prose.py messages 60        # errors that are raised, and lines of the log

The seed is a third argument, 1 by default: the same seed prints the same places of the same tree.
"""

from __future__ import annotations

import ast
import random
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
_PACKAGES = ("broker", "rmq_spark", "rocketpoll")
_LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"} | {
    "report",
    "report_dropped",
}
_WORDS_MIN = 4


def _docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def _text(node: ast.AST) -> str:
    """Return the text of a literal, with fields of an f-string as their code."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"{{{ast.unparse(part.value)}}}"
            if isinstance(part, ast.FormattedValue)
            else _text(part)
            for part in node.values
        )
    return ""


def _messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        is_log = isinstance(call.func, ast.Attribute) and call.func.attr in _LOG_METHODS
        if is_log or isinstance(node, ast.Raise):
            text = " | ".join(filter(None, map(_text, call.args)))
            if len(text.split()) >= _WORDS_MIN:
                yield call.lineno, text


def main(kind: str, count: int, seed: int = 1) -> None:
    """Print places and texts of one kind."""
    found = []
    for path in sorted(path for package in _PACKAGES for path in (ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = _docstrings(tree) if kind == "docstrings" else _messages(tree)
        found += [(name, line, text) for line, text in texts]
    for name, line, text in sorted(random.Random(seed).sample(found, count)):  # noqa: S311  # no secret
        print(f"{name}:{line}\n{textwrap.indent(text, '    ')}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
