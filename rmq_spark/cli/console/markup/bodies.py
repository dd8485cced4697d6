"""Body views: shows message bodies: JSON indented and colored, text as it is, anything else in hex.

Large bodies are cut, and the page says how large they are.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import Final, NamedTuple

from rmq_spark.cli.console.markup.html import Child, Html, el, join

SHOWN_BYTES_MAX: Final = 64 * 1024
_JSON_BYTES_MAX: Final = 1024 * 1024
"""A body up to this size is checked for JSON; a larger one is shown as text."""

_HEX_BYTES_MAX: Final = 4 * 1024
_HEX_WIDTH: Final = 16
_INDENT: Final = "  "
_PREVIEW_CHARACTERS_MAX: Final = 160
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


class BodyView(NamedTuple):
    """A rendered body: its kind in a word, the element, and how many of its bytes are shown.

    ``shown_bytes`` is None if all bytes are shown.
    """

    kind: str
    element: Html
    shown_bytes: int | None


def render_body(body: bytes, fault: str | None = None) -> BodyView:
    """Return a body for a page; for a message with a fault, the fault and the bytes."""
    shown = None if len(body) <= _HEX_BYTES_MAX else _HEX_BYTES_MAX
    in_hex = el("pre.body.hex", "\n".join(_hex_lines(body[:_HEX_BYTES_MAX])))
    if fault is not None:
        notice = el("p.notice", f"This message cannot be read: {fault}. Its stored bytes are:")
        return BodyView("stored bytes", join(notice, in_hex), shown)
    document = _json_of(body)
    if document is not None:
        pieces, is_whole = _indent_json(document)
        return BodyView("JSON", el("pre.body", pieces), None if is_whole else SHOWN_BYTES_MAX)
    text = text_of(body[:SHOWN_BYTES_MAX], is_whole=len(body) <= SHOWN_BYTES_MAX)
    if text is not None:
        cut_at = None if len(body) <= SHOWN_BYTES_MAX else SHOWN_BYTES_MAX
        return BodyView("text", el("pre.body", text), cut_at)
    return BodyView("bytes", in_hex, shown)


def preview_body(body: bytes, fault: str | None = None) -> str:
    """Return the start of a body on one line; for a message with a fault, the fault."""
    if fault is not None:
        return f"cannot be read: {fault}"
    head = body[: 4 * _PREVIEW_CHARACTERS_MAX]
    text = text_of(head, is_whole=len(head) == len(body))
    if text is None:
        return head[: _PREVIEW_CHARACTERS_MAX // 3].hex(" ")
    line = " ".join(text.split())
    return line if len(line) <= _PREVIEW_CHARACTERS_MAX else f"{line[:_PREVIEW_CHARACTERS_MAX]}..."


def text_of(head: bytes, *, is_whole: bool) -> str | None:
    """Return the start of a body as text; None if it is not text."""
    try:
        text = getincrementaldecoder("utf-8")().decode(head, final=is_whole)
    except UnicodeDecodeError:
        return None
    return None if "\x00" in text else text


def _json_of(body: bytes) -> str | None:
    if len(body) > _JSON_BYTES_MAX or body[:64].lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        text = body.decode()
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return text


def _indent_json(document: str) -> tuple[list[Child], bool]:
    """Return indented and colored JSON, and whether all of it is shown.

    The source text is indented, not re-encoded, so that digits and repeated names stay as sent.
    """
    pieces: list[Child] = []
    words = [found[0] for found in _JSON_TOKEN.finditer(document)]
    depth = length = 0
    for at, word in enumerate(words):
        behind = words[at + 1] if at + 1 < len(words) else ""
        if word in "{[" and behind not in ("}", "]"):
            depth += 1
            piece: Child = f"{word}\n{_INDENT * depth}"
        elif word in "{[":
            piece = word
        elif word in "}]":
            if words[at - 1] not in ("{", "["):
                depth -= 1
                piece = f"\n{_INDENT * depth}{word}"
            else:
                piece = word
        elif word == ",":
            piece = f",\n{_INDENT * depth}"
        elif word == ":":
            piece = ": "
        else:
            piece = el(f"span.json-{_token_kind(word, behind)}", word[: SHOWN_BYTES_MAX - length])
        pieces.append(piece)
        length += len(piece) if isinstance(piece, str) else len(word)
        if length > SHOWN_BYTES_MAX:
            return pieces, False
    return pieces, True


def _token_kind(word: str, next_word: str) -> str:
    if not word.startswith('"'):
        return "word"
    return "key" if next_word == ":" else "text"


def _hex_lines(body: bytes) -> Iterator[str]:
    for at in range(0, len(body), _HEX_WIDTH):
        piece = body[at : at + _HEX_WIDTH]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        yield f"{at:08x}  {piece.hex(' '):{_HEX_WIDTH * 3}} {text}"
