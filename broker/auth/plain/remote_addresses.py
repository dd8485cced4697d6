"""Remote addresses: the white addresses of plain_acl.yml, in the forms that RocketMQ 4.9 has.

    10.1.2.3                    one address                    10.1.2.3,10.1.2.4   several
    10.1.2.*   10.1.*.*         any number in these places     10.1.2-5.*          a range
    10.1.2.{3,30}               several numbers                ::1  fe80::*        IPv6 likewise
    *                           every address

A number in IPv6 is hexadecimal. RocketMQ ignores what follows the first ``*``, and reads
``10.1.*.3`` as ``10.1.*.*``; here each place counts.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, TypeAlias

_V6_GROUPS = struct.Struct(">8H")
_EVERYBODY: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_NUMBER_V4: Final = re.compile(r"[0-9]{1,3}")
_NUMBER_V6: Final = re.compile(r"[0-9a-fA-F]{1,4}")

Ranges: TypeAlias = tuple[range, ...]
"""The numbers that one place of an address may have."""


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """One or several addresses, or all; without alternatives, none."""

    text: str
    is_everybody: bool = False
    alternatives: tuple[tuple[Ranges, ...], ...] = ()

    @classmethod
    def parse(cls, text: str) -> AddressPattern:
        """Parse a pattern; a blank one covers no address.

        Raises:
            ValueError: It has none of the forms; the message says what is expected.
        """
        if not text.strip():
            return cls(text)
        if text in _EVERYBODY:
            return cls(text, is_everybody=True)
        if "{" in text:
            return cls(text, alternatives=(_places(text),))
        return cls(text, alternatives=tuple(_places(each) for each in text.split(",")))

    def covers(self, address: str) -> bool:
        """Return whether an address has this pattern."""
        if self.is_everybody:
            return True
        numbers = _numbers_of(address)
        return any(
            len(places) == len(numbers)
            and all(
                any(number in numbers_of for numbers_of in place)
                for number, place in zip(numbers, places, strict=True)
            )
            for places in self.alternatives
        )


@lru_cache(maxsize=1_024)
def _numbers_of(address: str) -> tuple[int, ...]:
    """Return the number in each place of an address."""
    packed = ip_address(address).packed
    return tuple(packed) if len(packed) == 4 else _V6_GROUPS.unpack(packed)


NOBODY: Final = AddressPattern("")


def _places(text: str) -> tuple[Ranges, ...]:
    if ":" in text:
        groups = _expand(text)
        if len(groups) == 8:
            return tuple(_ranges(text, group, 16, 0xFFFF, _NUMBER_V6) for group in groups)
    else:
        bytes_ = text.split(".")
        if len(bytes_) == 4:
            return tuple(_ranges(text, each, 10, 255, _NUMBER_V4) for each in bytes_)
    raise _invalid(text)


def _expand(text: str) -> list[str]:
    """Return the groups of an IPv6 pattern, with zeros for ``::``."""
    head, double, tail = text.partition("::")
    if not double:
        return text.split(":")
    left = head.split(":") if head else []
    right = tail.split(":") if tail else []
    return [*left, *["0"] * (8 - len(left) - len(right)), *right]


def _ranges(text: str, place: str, base: int, highest: int, number: re.Pattern[str]) -> Ranges:
    """Return the numbers that one place of a pattern stands for."""
    if place == "*":
        return (range(highest + 1),)
    words = place[1:-1].split(",") if place[:1] == "{" and place[-1:] == "}" else [place]
    found = []
    for word in words:
        low, minus, high = word.partition("-")
        if not number.fullmatch(low) or (minus and not number.fullmatch(high)):
            raise _invalid(text)
        first, last = int(low, base), int(high if minus else low, base)
        if first > last or last > highest:
            raise _invalid(text)
        found.append(range(first, last + 1))
    return tuple(found)


def _invalid(text: str) -> ValueError:
    return ValueError(
        f"an address such as 10.1.2.3, 10.1.2.*, 10.1.2-5.*, 10.1.2.{{3,30}}, fe80::* or *, not "
        f"{text[:60]!r}"
    )
