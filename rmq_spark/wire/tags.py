"""Tags code: the number that a consume queue has in place of a message's tags.

It is Java's ``String.hashCode``, over UTF-16 code units, as a signed 32-bit number. Different tags
can share one (``AaAa`` and ``BBBB`` do), so a match must still be compared by text.
"""

from __future__ import annotations

import codecs
from array import array
from functools import lru_cache
from sys import byteorder
from typing import Final

TAG_SEPARATOR: Final = "||"
"""Text between the tags of a subscription."""

BLANKS: Final = "".join(map(chr, range(0x21)))
"""Characters that Java's ``trim()`` removes, as around a tag: U+0000 to U+0020, and no others."""

_CACHED_CHARACTERS_MAX = 128  # longer texts rarely recur, and would use memory
_UTF_16 = "utf-16-le" if byteorder == "little" else "utf-16-be"
codecs.lookup(_UTF_16)  # imported now, because later there may be no descriptor for its file


def java_string_hash(text: str) -> int:
    """Return Java's ``hashCode`` of a text."""
    return _cached_hash(text) if len(text) <= _CACHED_CHARACTERS_MAX else _hash(text)


def _hash(text: str) -> int:
    result = 0
    # A tag is nearly always ASCII: its bytes are its code units, and looked at in half of the time.
    units = text.encode() if text.isascii() else array("H", text.encode(_UTF_16, "surrogatepass"))
    for unit in units:
        result = (31 * result + unit) & 0xFFFFFFFF
    return result - ((result & 0x80000000) << 1)


# Tags and index keys come in crowds; each costs a step per character.
_cached_hash = lru_cache(maxsize=4096)(_hash)


def tags_code(tags: str | None) -> int:
    """Return the code of a message's TAGS property; 0 for a message without tags."""
    return java_string_hash(tags) if tags else 0
