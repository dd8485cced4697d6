"""Values of bodies: what is common to all formats on the way from texts to Spark's own types.

Readers of a format give what it has (`read_as`): dates and times as texts. `finished` makes columns
of the exact types out of them, all values at once, and says which value is none. It knows no format
and no message.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import excerpt, legible

_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
_DECIMAL_DIGITS: Final = 38
_PATH_MAX: Final = 200
_PIECES_MAX: Final = 64
"""The pieces that values are cut into if not all of them fit."""

Path: TypeAlias = tuple["Path", str | int] | None
"""The place of a value: its parent's, and its name or its index there; None for the whole body.

A text for each value would copy the names of all its parents: the time would grow with the square
of a long name.
"""


class BodyFault(ValueError):
    """A body cannot be decoded; the message says where, what was needed, and what is there."""

    def __init__(self, path: Path | str, needed: str, found: object) -> None:
        """Take the path of a field, None or empty for the whole body."""
        place = path if isinstance(path, str) else _path_text(path)
        if len(place) > _PATH_MAX:
            place = place[: _PATH_MAX - 3] + "..."
        super().__init__(f"its {place or 'body'}: needed {needed}, found {found}")


def _path_text(path: Path) -> str:
    """Return a path as an error shows it; of very long names only the beginning."""
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part[:_PATH_MAX]}")
    return legible("".join(reversed(parts)).removeprefix("."))


def read_as(kind: pa.DataType, *, numbers_too: bool = False) -> pa.DataType:
    """Return a type with texts for what JSON has as texts, and with floats of 64 bits.

    Decimals are texts as well, unless ``numbers_too`` says that the reader has them by itself.
    """
    if pa.types.is_struct(kind):
        return pa.struct(
            [pa.field(each.name, read_as(each.type, numbers_too=numbers_too)) for each in kind]
        )
    if pa.types.is_list(kind):
        return pa.list_(read_as(kind.value_type, numbers_too=numbers_too))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), read_as(kind.item_type, numbers_too=numbers_too))
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_float32(kind):
        return pa.float64()
    return pa.string() if pa.types.is_decimal(kind) and not numbers_too else kind


def finished(found: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Return an array, as a reader gave it, in the exact type.

    Raises:
        BodyFault: A value is none of the type.
    """
    if pa.types.is_struct(kind):
        before = f"{path}." if path else ""
        children = [
            finished(child, field.type, f"{before}{field.name}")
            for field, child in zip(kind, found.flatten(), strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.is_null(found))
    if pa.types.is_list(kind):
        values = finished(found.values, kind.value_type, f"{path}[]")
        return pa.ListArray.from_arrays(_offsets(found), values).cast(kind)
    if pa.types.is_map(kind):
        items = finished(found.items, kind.item_type, f"{path}[]")
        return pa.MapArray.from_arrays(_offsets(found), found.keys, items).cast(kind)
    if pa.types.is_timestamp(kind):
        return _leaf(found, path, _zoned if kind.tz else _local, kind)
    if pa.types.is_date(kind):
        return _leaf(found, path, _date, kind)
    if pa.types.is_decimal(kind):
        return _leaf(found, path, _decimal, kind)
    if pa.types.is_float32(kind):
        return _leaf(found, path, _small_float, kind)
    return found if found.type == kind else found.cast(kind)


def each_of(
    bodies: pa.Array, tree: Callable[[bytes], Any], build: Callable[[list[Any]], pa.Array]
) -> tuple[pa.Array, dict[int, BodyFault]]:
    """Return bodies decoded one by one, null where they cannot be, and the faults of those.

    Args:
        bodies: The bodies, none of them null.
        tree: Makes a body Python's values, or raises a BodyFault.
        build: Makes an array of such values, or raises a BodyFault if one does not fit.
    """
    trees: list[Any] = []
    faults: dict[int, BodyFault] = {}
    for row, body in enumerate(bodies.to_pylist()):
        try:
            trees.append(tree(body))
        except BodyFault as fault:  # noqa: PERF203  # each body has its own
            faults[row] = fault
            trees.append(None)
    return _built(trees, 0, build, faults), faults


def _built(
    trees: list[Any],
    first: int,
    build: Callable[[list[Any]], pa.Array],
    faults: dict[int, BodyFault],
) -> pa.Array:
    """Return an array of values; those that do not fit are null, and noted from ``first`` on.

    Values that do not fit together are tried in pieces, and then one by one: each at most as often
    as there are levels of pieces, of which 10,000 values have three.
    """
    try:
        return build(trees)
    except BodyFault as fault:
        if len(trees) == 1:
            faults[first] = fault
            return build([None])
    size = -(-len(trees) // _PIECES_MAX)
    pieces = range(0, len(trees), size)
    return pa.concat_arrays(
        [_built(trees[at : at + size], first + at, build, faults) for at in pieces]
    )


def _offsets(found: pa.Array) -> pa.Array:
    """Return offsets of lists or maps, null where the list is."""
    offsets = np.asarray(found.offsets)
    if not found.null_count:
        return pa.array(offsets, pa.int32())
    mask = np.append(np.asarray(pc.is_null(found)), False)  # a value, no flag
    return pa.array(offsets, pa.int32(), mask=mask)


Cast = Callable[[pa.Array, pa.DataType], pa.Array]


def _leaf(found: pa.Array, path: str, cast: Cast, kind: pa.DataType) -> pa.Array:
    try:
        return cast(found, kind)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise BodyFault(path, _needed(kind), excerpt(_misfit(found, cast, kind))) from error


def _misfit(found: pa.Array, cast: Cast, kind: pa.DataType) -> Any:
    """Return the first value that cannot be cast, of those among which there is one."""
    while len(found) > 1:
        middle = len(found) // 2
        first = found.slice(0, middle)
        found = found.slice(middle) if _can_be(first, cast, kind) else first
    return found[0].as_py()


def _can_be(values: pa.Array, cast: Cast, kind: pa.DataType) -> bool:
    try:
        cast(values, kind)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True


def _needed(kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        return "a date as 2026-01-31"
    if pa.types.is_decimal(kind):
        return f"a number of {kind.precision} digits, {kind.scale} of them behind the point"
    if pa.types.is_floating(kind):
        return "a number that 32 bits hold"
    zone = ", with Z or +02:00 behind it, or without" if kind.tz else " without a zone"
    return f"a time as 2026-01-31T12:00:00.123456{zone}"


def _date(found: pa.Array, kind: pa.DataType) -> pa.Array:
    return _between(found.cast(kind), pa.int32(), _FIRST_DAY, _LAST_DAY)


def _decimal(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals; pyarrow takes more digits than there may be, and forgets bits of some."""
    numbers = found.cast(kind)
    if pa.types.is_string(found.type):
        is_long = pc.greater(pc.binary_length(found), _DECIMAL_DIGITS - kind.scale)
        is_doubtful = pc.or_(is_long, pc.match_substring(found, "e", ignore_case=True))
        for row in np.flatnonzero(pc.fill_null(is_doubtful, fill_value=False)):
            if Decimal(found[int(row)].as_py()) != numbers[int(row)].as_py():
                raise pa.ArrowInvalid("a number is too large")
    bounds = pc.min_max(numbers)
    largest = Decimal((0, (9,) * kind.precision, -kind.scale))
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    if first is not None and (first < -largest or last > largest):
        raise pa.ArrowInvalid("a number is too large")
    return numbers


def _small_float(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return floats of 32 bits; only infinite ones may become, or be, infinite."""
    wide = found.cast(pa.float64())
    narrow = found.cast(kind)
    if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(wide))).as_py():
        raise pa.ArrowInvalid("a number is too large")
    return narrow


def _zoned(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return moments; texts without a zone are in UTC."""
    texts = _to_microseconds(found)
    has_zone = pc.match_substring_regex(texts, r":.*(Z|[+-]\d\d(:?\d\d)?)$")
    if pc.all(has_zone).as_py() is not False:
        return _possible(texts.cast(kind))
    plain = pc.if_else(has_zone, pa.scalar(None, pa.string()), texts)
    with_zone = pc.if_else(has_zone, texts, pa.scalar(None, pa.string()))
    local = plain.cast(pa.timestamp("us")).cast(kind)
    return _possible(pc.coalesce(with_zone.cast(kind), local))


def _local(found: pa.Array, kind: pa.DataType) -> pa.Array:
    return _possible(_to_microseconds(found).cast(kind))


def _to_microseconds(texts: pa.Array) -> pa.Array:
    """Return times with at most six digits behind the point, as Spark has them."""
    longest = pc.max(pc.binary_length(texts)).as_py()
    if longest is None or longest <= len("2026-01-31T12:00:00.123456"):
        return texts
    return pc.replace_substring_regex(texts, r"(\.\d{6})\d{1,3}(\D|$)", r"\1\2")


def _possible(times: pa.Array) -> pa.Array:
    """Return times, if all are in the years 1 to 9999."""
    _between(times.cast(pa.timestamp("us")), pa.int64(), _FIRST_US, _LAST_US)
    return times


def _between(times: pa.Array, number: pa.DataType, least: int, most: int) -> pa.Array:
    bounds = pc.min_max(times.cast(number))
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    if first is not None and (first < least or last > most):
        raise pa.ArrowInvalid("a time is not in the years 1 to 9999")
    return times
