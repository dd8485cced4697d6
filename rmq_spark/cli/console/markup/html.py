"""HTML as values: elements with a name, attributes and children; every text in them is escaped.

    el("a.name", topic, href=path("topics", topic))  ──>  <a class="name" href="/topics/...">...</a>

Escaping is not left to the author of a page: text gets into an element only by `el`, which escapes
it. Characters that change the layout (controls, overrides of direction, lone surrogates) are shown
as escapes, and links lead only to this site.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Final, TypeAlias
from urllib.parse import quote, urlencode

_CONTROL_CHARACTERS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_LOCAL_LOCATION: Final = re.compile(r"[?#][!-~]*|/(?![/\\])[!-~]*")
_VOID: Final = frozenset({"input", "link", "meta"})
_LOCATIONS: Final = frozenset({"href", "action", "src"})


class Html:
    """Finished markup: all text in it has been escaped."""

    __slots__ = ("markup",)

    def __init__(self, markup: str) -> None:
        self.markup = markup

    def __bool__(self) -> bool:
        return bool(self.markup)


Child: TypeAlias = "Html | str | float | Iterable[Child] | None"
Attribute: TypeAlias = "str | int | float | bool | None"

NOTHING: Final = Html("")


def el(selector: str, *children: Child, **attributes: Attribute) -> Html:
    """Return an element.

    Args:
        selector: Its name, and classes after dots, such as ``"td.number"``.
        children: Texts, numbers, elements, or iterables of these; None is omitted.
        attributes: Its attributes, ``data_live`` for ``data-live`` and ``for_`` for ``for``; True
            is one without a value, None and False are omitted.
    """
    name, *classes = filter(None, selector.split("."))
    parts = ["<", name]
    if classes:
        parts.append(f' class="{" ".join(classes)}"')
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")  # noqa: PLW2901  # as HTML writes it
        if key in _LOCATIONS and not is_local(str(value)):
            raise ValueError(f"{key} of {name} leads away: {value!r}")
        parts.append(f" {key}" if value is True else f' {key}="{_escape_text(str(value))}"')
    parts.append(">")
    if name not in _VOID:
        parts += [markup_of(children), "</", name, ">"]
    return Html("".join(parts))


def markup_of(child: Child) -> str:
    """Return the markup of children, with text escaped."""
    if child is None:
        return ""
    if isinstance(child, Html):
        return child.markup
    if isinstance(child, (str, int, float)):
        return _escape_text(str(child))
    return "".join(map(markup_of, child))


def join(*children: Child) -> Html:
    """Return children side by side."""
    return Html(markup_of(children))


def path(*segments: object, **query: object) -> str:
    """Return a path of this site, with segments and query encoded.

    Args:
        segments: Parts between slashes; each may contain slashes itself.
        query: Parameters; None and empty text are omitted.
    """
    url_path = "/" + "/".join(
        quote(str(each), safe="", errors="surrogatepass") for each in segments
    )
    given = {key.rstrip("_"): str(value) for key, value in query.items() if value not in (None, "")}
    return f"{url_path}?{urlencode(given, errors='surrogatepass')}" if given else url_path


def _escape_text(text: str) -> str:
    return escape(
        _CONTROL_CHARACTERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    )


def is_verbatim(text: str) -> bool:
    """Return whether pages show a text as it is, without escapes, so that a form can return it."""
    return not _CONTROL_CHARACTERS.search(text)


def is_local(location: str) -> bool:
    """Return whether a location is a path, a query or a fragment of this site, and of no other."""
    return bool(_LOCAL_LOCATION.fullmatch(location))
