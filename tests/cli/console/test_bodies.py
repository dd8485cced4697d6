"""The console displays message bodies readably, whatever their content and size."""

import json
import re
from html import unescape

from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.cli.console.markup.bodies import SHOWN_BYTES_MAX, preview_body, render_body

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


def text_of(body):
    return unescape(re.sub(r"<[^>]*>", "", render_body(body).element.markup))


def test_json_is_laid_out_with_its_own_digits_and_names():
    body = b'{"id":12345678901234567890.10, "id":[ ],"a":[1,{"b":"}\\""}],"c":{}}'
    assert text_of(body) == (
        '{\n  "id": 12345678901234567890.10,\n  "id": [],\n  "a": [\n    1,\n    {\n'
        '      "b": "}\\""\n    }\n  ],\n  "c": {}\n}'
    )
    assert render_body(body).kind == "JSON"
    assert '<span class="json-key">&quot;id&quot;</span>' in render_body(body).element.markup


@given(st.lists(DOCUMENTS) | st.dictionaries(st.text(), DOCUMENTS))
def test_json_body_is_shown_as_the_same_json(document):
    body = json.dumps(document).encode()
    assert json.loads(text_of(body)) == document


def test_text_body_is_shown_as_text_and_others_in_hex():
    assert text_of(b"two\nlines <b>") == "two\nlines <b>"
    assert render_body(b"[1, 2").kind == "text"
    assert render_body(b"\xff\xfe").kind == "bytes"
    assert text_of(b"\x00A\xff").split() == ["00000000", "00", "41", "ff", ".A."]


def test_large_body_is_truncated_with_a_note():
    for body in (b"x" * 3_000_000, json.dumps(["y" * 400_000]).encode(), bytes(3_000_000)):
        made = render_body(body)
        assert made.shown_bytes
        assert len(made.element.markup) < 2 * SHOWN_BYTES_MAX
    wide = "\N{EURO SIGN}".encode() * SHOWN_BYTES_MAX  # cut in the middle of a character
    assert render_body(wide).kind == "text"
    assert render_body(b"short").shown_bytes is None


def test_deeply_nested_json_body_is_shown():
    assert render_body(b"[" * 100_000 + b"]" * 100_000).kind in ("JSON", "text")


def test_body_preview_is_one_short_line():
    assert preview_body(b"a\n  b") == "a b"
    assert preview_body(b"\xff\x00") == "ff 00"
    assert len(preview_body(b"x" * 10_000)) < 200
    assert preview_body("\N{EURO SIGN}".encode() * 10_000).startswith("\N{EURO SIGN}")
