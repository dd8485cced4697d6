"""Every exception that rocketpoll raises on purpose, sorted by what the caller can do.

    RocketPollError
    └── WireError         bytes that cannot be what they claim to be, or a value that has no bytes
        ├── FrameError    a length word is wrong: the stream has no next frame, close the connection
        ├── HeaderError   one frame's header: the frames behind it are still readable
        ├── BodyError     one frame's body (JSON, batch, compressed bytes)
        │   └── CodecMissing   a module is not installed that inflates such bodies
        └── RecordError   a stored message, or a chunk of them

It must not import anything of the project: every room imports it.
"""

from __future__ import annotations

import reprlib

_EXCERPT_CHARACTERS = 60
_PLACE_CHARACTERS = 200


class RocketPollError(Exception):
    """The root: catch it to catch everything that rocketpoll reports."""


class WireError(RocketPollError):
    """Says where it went wrong, what was needed there and what was there.

    ``at`` is a byte position, or the name of a field or JSON path where bytes have no meaning.
    """

    def __init__(self, subject: str, *, at: int | str, needed: str, found: object) -> None:
        """``found`` is shown cut short: an error never repeats megabytes of bad input."""
        if isinstance(at, str) and len(at) > _PLACE_CHARACTERS:  # names of fields can be bad input, too
            at = at[: _PLACE_CHARACTERS - 3] + "..."
        self.subject = subject
        self.at = at
        self.needed = needed
        self.found = excerpt(found)
        place = f"byte {at}" if isinstance(at, int) else at
        super().__init__(f"{subject} at {place}: needed {needed}, found {self.found}")

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the fields when an executor's exception travels to the driver."""
        return _rebuilt, (type(self), self.subject, self.at, self.needed, self.found)


class FrameError(WireError):
    """The length words of a frame contradict each other or a limit."""


class HeaderError(WireError):
    """A frame's header, or one field of it, cannot be read or written."""


class BodyError(WireError):
    """A frame's body cannot be read or written."""


class CodecMissing(BodyError):
    """A module is not installed that bodies of some compression need; all other bodies can be read."""


class RecordError(WireError):
    """A stored message cannot be read or written."""


class Verbatim(str):
    """Text that an error shows as it is, without quotes."""

    __slots__ = ()


def excerpt(value: object) -> str:
    """The representation of a value, cut to a length that fits in a log line."""
    if isinstance(value, Verbatim):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        text = repr(bytes(value[: _EXCERPT_CHARACTERS + 1]))
    elif isinstance(value, str):
        text = repr(value[: _EXCERPT_CHARACTERS + 1])
    elif isinstance(value, int) and not -(1 << 200) < value < 1 << 200:
        text = f"an integer of {value.bit_length()} bits"
    else:
        text = reprlib.repr(value)
    if len(text) <= _EXCERPT_CHARACTERS:
        return text
    return text[:_EXCERPT_CHARACTERS] + "..."


def _rebuilt(kind: type[WireError], subject: str, at: int | str, needed: str, found: str) -> WireError:
    return kind(subject, at=at, needed=needed, found=Verbatim(found))
