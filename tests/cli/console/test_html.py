"""HTML elements of the console: foreign text never becomes markup, and no link leads elsewhere."""

from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.cli.console.markup.html import el, join, markup_of, path

PRINTABLE = st.characters(exclude_categories=("C", "Zl", "Zp"))


class Read(HTMLParser):
    """Collects the elements and the text that a browser would show."""

    def __init__(self, markup):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def test_html_element_has_classes_attributes_and_children():
    made = el("a.name.wide", "orders", 3, None, [el("b", "!")], href="/topics", data_live=True)
    assert made.markup == '<a class="name wide" href="/topics" data-live>orders3<b>!</b></a>'
    assert el("input", for_="x", hidden_fields=False, value=None).markup == '<input for="x">'


@given(st.text())
def test_any_text_is_escaped_in_html(text):
    read = Read(el("p", text, title=text).markup)
    assert read.tags == ["p"]
    assert [name for name, _ in read.attributes] == ["title"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\x07b\x00", "a\\x07b\\x00"),
        ("\ud800", "\\ud800"),
        ("two\nlines\tand \N{GRINNING FACE}", "two\nlines\tand \N{GRINNING FACE}"),
    ],
)
def test_control_characters_are_shown_as_escapes(text, shown):
    assert Read(markup_of(text)).text == shown
    markup_of(text).encode()


@pytest.mark.parametrize(
    "location", ["javascript:alert(1)", "//evil.com", "https://evil.com", "data:x", "", "/\\evil"]
)
def test_html_link_to_another_site_is_refused(location):
    with pytest.raises(ValueError, match="leads away"):
        el("a", href=location)
    with pytest.raises(ValueError, match="leads away"):
        el("form", action=location)


@given(st.lists(st.text(PRINTABLE, min_size=1), min_size=1))
def test_url_path_is_decoded_back_to_its_segments(segments):
    made = path(*segments)
    assert [unquote(each) for each in made[1:].split("/")] == segments
    el("a", href=made)


def test_url_path_omits_empty_query_parameters():
    assert path("topics", "%DLQ%a/b", q="a b", page=None, sort="") == "/topics/%25DLQ%25a%2Fb?q=a+b"
    assert path() == "/"
    assert join("<", el("b")).markup == "&lt;<b></b>"
