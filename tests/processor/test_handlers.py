"""The table of processors: which handler serves which request code."""

import ast
import inspect
import re
from collections import Counter
from pathlib import Path

from rmq_spark.wire.codes import RequestCode
from rocketpoll.broker import processor

ROOT = Path(__file__).parents[2]
SOURCES = sorted(Path(inspect.getfile(processor)).parent.rglob("*.py"))


def handled_codes() -> list[RequestCode]:
    """Return the codes of all ``@handles`` in the sources, with repetitions."""
    return [
        RequestCode[each.attr]
        for source in SOURCES
        for call in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "handles"
        for each in ast.walk(call)
        if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "RequestCode"
    ]


def test_request_codes_are_handled_in_one_place_only():
    assert [code for code, times in Counter(handled_codes()).items() if times > 1] == []


def test_each_handler_code_is_found_in_the_sources_and_handled_once(room):
    assert set(room.handlers) <= set(handled_codes())
    assert len(room.handlers) == sum(len(processor.handlers()) for processor in room.processors)


def test_handled_requests_are_documented(room):
    text = (ROOT / "docs" / "requests.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", text))
    assert [
        code.name
        for code in map(RequestCode, room.handlers)
        if not {code.name, str(int(code))} <= words
    ] == []
