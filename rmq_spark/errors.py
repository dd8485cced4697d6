"""Base classes of all errors that rocketpoll raises, sorted by what the caller can do about them.

RocketPollError
└── WireError         bytes cannot be decoded, or a value cannot be encoded
    ├── FrameError    a length word is wrong: there is no next frame, close the connection
    ├── HeaderError   one frame's header: the frames that follow are still readable
    ├── BodyError     one frame's body (JSON, batch, compressed bytes)
    │   ├── CodecMissing   the module that inflates such bodies is not installed
    │   └── BodyTooLarge   a compressed body is sound, and inflates to more than a limit
    └── RecordError   a stored message, or a chunk of them
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

PAGES: Final = ""
"""Base address of the documentation on the web, ending with a slash; empty if there is none."""

_PUBLIC_MODULES: Final = {
    "rmq_spark.errors": "rocketpoll.errors",
    "rmq_spark.client.errors": "rocketpoll.errors",
    "rmq_spark.spark.errors": "rocketpoll.spark",
}
"""The public module of each module that defines errors: programs import it, tracebacks show it."""

_EXCERPT_CHARACTERS = 60
_POSITION_CHARACTERS = 200


class RocketPollError(Exception):
    """Base class of all errors that rocketpoll raises: catch it to catch every one of them.

    From Python 3.11 on, a traceback names the documentation page below the error's message.

    Attributes:
        page: The page, and the heading on it, that says more about such errors.
    """

    __module__ = "rocketpoll.errors"
    page: ClassVar[str] = "troubleshooting.md"

    def __init_subclass__(cls, page: str | None = None) -> None:
        """Set the module that a traceback shows; a class without a ``page`` inherits one."""
        super().__init_subclass__()
        cls.__module__ = _PUBLIC_MODULES.get(cls.__module__, cls.__module__)
        if page is not None:
            cls.page = page

    def __new__(cls, *args: object, **_: object) -> Self:
        """Create the error with the address of its page as a note."""
        error = super().__new__(cls, *args)
        error.__dict__["__notes__"] = [_note(cls.page)]  # add_note() came with 3.11
        return error


def _note(page: str) -> str:
    """Return the note of an error: the address of its page, or the page's title and heading."""
    if PAGES:
        return f"See {PAGES}{page}"
    name, _, heading = page.partition("#")
    title = name.removesuffix(".md").capitalize()
    where = f", {heading.replace('-', ' ')}" if heading else ""
    return f"See {title}{where}, in rocketpoll's documentation"


class WireError(RocketPollError, page="troubleshooting.md#bytes-that-cannot-be-read"):
    """Bytes could not be decoded, or a value could not be encoded.

    Attributes:
        subject: The thing that was decoded or encoded.
        at: Position in bytes, or the name of a field, or a JSON path.
        needed: The values that are allowed there, in words.
        found: The value that was there, as text, cut short.
    """

    def __init__(self, subject: str, *, at: int | str, needed: str, found: object) -> None:
        """Build the message; ``found`` is cut short, so that no error repeats a large input."""
        # field names can be bad input as well
        if isinstance(at, str) and len(at) > _POSITION_CHARACTERS:
            at = at[: _POSITION_CHARACTERS - 3] + "..."
        self.subject = subject
        self.at = at
        self.needed = needed
        self.found = excerpt(found)
        super().__init__(f"{self.without_value}, found {self.found}")

    @property
    def without_value(self) -> str:
        """The message without the value that was found, which may be a secret."""
        position = f"byte {self.at}" if isinstance(self.at, int) else self.at
        return f"{self.subject} at {position}: needed {self.needed}"

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the fields when the error is pickled, for example from an executor to the driver."""
        return _rebuild, (type(self), self.subject, self.at, self.needed, self.found)


class FrameError(WireError):
    """The length words of a frame contradict each other or a limit: close the connection."""


class HeaderError(WireError):
    """The header of a frame, or one of its fields, cannot be read or written."""


class BodyError(WireError):
    """The body of a frame cannot be read or written."""


class CodecMissing(BodyError):
    """A module that decompresses such bodies is not installed; all other bodies can be read."""


class BodyTooLarge(BodyError):
    """A compressed body inflates to more bytes than the reader's limit; it need not be damaged."""


class RecordError(WireError):
    """A stored message cannot be read or written."""


class Verbatim(str):
    """Text that an error shows as it is, without quotes."""

    __slots__ = ()


def excerpt(value: object) -> str:
    """Return the representation of a value, cut to a length that fits in a log line."""
    if isinstance(value, Verbatim):
        return value
    try:
        text = _representation(value)
    except Exception:  # noqa: BLE001  # __repr__ may raise anything, as for [10**5000]
        text = f"a {type(value).__name__} that cannot be shown"
    if len(text) <= _EXCERPT_CHARACTERS:
        return text
    return text[:_EXCERPT_CHARACTERS] + "..."


def _representation(value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return repr(bytes(value[: _EXCERPT_CHARACTERS + 1]))
    if isinstance(value, str):
        return repr(value[: _EXCERPT_CHARACTERS + 1])
    if isinstance(value, int) and not -(1 << 200) < value < 1 << 200:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)


def sanitize(text: str) -> str:
    """Return a foreign text in a form that an error can show.

    The result is cut to a length that fits, and has no surrogates.
    """
    if len(text) > _POSITION_CHARACTERS:
        text = f"{text[:_EXCERPT_CHARACTERS]}..., {len(text)} characters"
    return escape_surrogates(text)


def escape_surrogates(text: str) -> str:
    """Return a text with its surrogates escaped, such as those in paths of another encoding."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the name most similar to a misspelled one, ignoring case; or None."""
    from difflib import get_close_matches  # noqa: PLC0415  # only errors need it, not each start

    by_lower = {each.lower(): each for each in names}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def format_count(count: int, singular: str, plural: str = "") -> str:
    """Return a number of things in words: ``1 queue``, ``2,000 queues``.

    Args:
        count: The number.
        singular: Word for one of them.
        plural: Word for several; by default that for one, with an s.
    """
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


_BYTE_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_bytes(count: int) -> str:
    """Return a number of bytes with the unit that fits: ``0 B``, ``3.4 KiB``, ``186.3 GiB``."""
    size, unit = float(count), "B"
    for next_unit in _BYTE_UNITS:
        if abs(size) < 1024:
            break
        size, unit = size / 1024, next_unit
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _rebuild(
    error_class: type[WireError], subject: str, at: int | str, needed: str, found: str
) -> WireError:
    return error_class(subject, at=at, needed=needed, found=Verbatim(found))
