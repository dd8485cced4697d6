"""Arrow conversion: from the values of a body format to Spark's exact types, for all formats.

The reader of a format returns the types that the format has (`parsed_type`): dates and times as
text. `to_exact_type` converts whole columns to the exact types, and reports the first value that
does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import excerpt, sanitize

_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
_DECIMAL_DIGITS: Final = 38
_PATH_MAX: Final = 200
_SLICES_MAX: Final = 64
"""The pieces that values are cut into if not all of them fit."""

FieldPath: TypeAlias = tuple["FieldPath", str | int] | None
"""The place of a value: its parent's, and its name or its index there; None for the whole body.

A text for each value would copy the names of all its parents: the time would grow with the square
of a long name.
"""


class BodyFault(ValueError):
    """A body cannot be decoded; the message has the path, what was expected, and what was found."""

    def __init__(self, path: FieldPath | str, needed: str, found: object) -> None:
        """Take the path of a field; None or empty for the whole body."""
        path_text = path if isinstance(path, str) else _format_path(path)
        if len(path_text) > _PATH_MAX:
            path_text = path_text[: _PATH_MAX - 3] + "..."
        super().__init__(f"its {path_text or 'body'}: needed {needed}, found {found}")


def _format_path(path: FieldPath) -> str:
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part[:_PATH_MAX]}")
    return sanitize("".join(reversed(parts)).removeprefix("."))


def parsed_type(kind: pa.DataType, *, keeps_decimals: bool = False) -> pa.DataType:
    """Return a type with text for what JSON writes as text, and with 64-bit floats.

    Decimals become text as well, unless ``keeps_decimals`` says that the reader parses them itself.
    """
    if pa.types.is_struct(kind):
        return pa.struct(
            [
                pa.field(each.name, parsed_type(each.type, keeps_decimals=keeps_decimals))
                for each in kind
            ]
        )
    if pa.types.is_list(kind):
        return pa.list_(parsed_type(kind.value_type, keeps_decimals=keeps_decimals))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), parsed_type(kind.item_type, keeps_decimals=keeps_decimals))
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_float32(kind):
        return pa.float64()
    return pa.string() if pa.types.is_decimal(kind) and not keeps_decimals else kind


def to_exact_type(found: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Convert an array, as a reader returned it, to the exact type."""
    if pa.types.is_struct(kind):
        before = f"{path}." if path else ""
        children = [
            to_exact_type(child, field.type, f"{before}{field.name}")
            for field, child in zip(kind, found.flatten(), strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.is_null(found))
    if pa.types.is_list(kind):
        values = to_exact_type(found.values, kind.value_type, f"{path}[]")
        return pa.ListArray.from_arrays(_offsets(found), values).cast(kind)
    if pa.types.is_map(kind):
        items = to_exact_type(found.items, kind.item_type, f"{path}[]")
        return pa.MapArray.from_arrays(_offsets(found), found.keys, items).cast(kind)
    if pa.types.is_timestamp(kind):
        return _cast_leaf(
            found, path, _to_zoned_timestamps if kind.tz else _to_local_timestamps, kind
        )
    if pa.types.is_date(kind):
        return _cast_leaf(found, path, _to_dates, kind)
    if pa.types.is_decimal(kind):
        return _cast_leaf(found, path, _to_decimals, kind)
    if pa.types.is_float32(kind):
        return _cast_leaf(found, path, _to_float32, kind)
    return found if found.type == kind else found.cast(kind)


def decode_one_by_one(
    bodies: pa.Array, tree: Callable[[bytes], Any], build: Callable[[list[Any]], pa.Array]
) -> tuple[pa.Array, dict[int, BodyFault]]:
    """Return bodies decoded one by one, null where decoding failed, and the faults by row.

    Args:
        bodies: The bodies, none of them null.
        tree: Parses a body to Python values, or raises a BodyFault.
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
    return _build_array(trees, 0, build, faults), faults


class BodyDecoder(Protocol):
    """Decodes bodies of one format, none of which is null."""

    def decode_all(self, bodies: pa.Array) -> pa.Array:
        """Return bodies as values of one type; raise ValueError if each must be decoded alone."""

    def decode_each(self, bodies: pa.Array) -> tuple[pa.Array, dict[int, BodyFault]]:
        """Return decoded bodies, null where decoding failed, and the faults by row."""


class RowDecoder:
    """The decoder of a format whose library parses bodies one by one."""

    def parse(self, body: bytes) -> Any:
        """Return a body as a Python value; raise a `BodyFault` if it cannot be parsed."""
        raise NotImplementedError

    def build(self, trees: list[Any]) -> pa.Array:
        """Return an array of parsed bodies, null for None; raise a `BodyFault` if one is wrong."""
        raise NotImplementedError

    def decode_all(self, bodies: pa.Array) -> pa.Array:
        """Return bodies as values of one type; raise a `BodyFault` if one is bad."""
        return self.build([self.parse(body) for body in bodies.to_pylist()])

    def decode_each(self, bodies: pa.Array) -> tuple[pa.Array, dict[int, BodyFault]]:
        """Return decoded bodies, null where decoding failed, and the faults by row."""
        return decode_one_by_one(bodies, self.parse, self.build)


def _build_array(
    trees: list[Any],
    first: int,
    build: Callable[[list[Any]], pa.Array],
    faults: dict[int, BodyFault],
) -> pa.Array:
    """Return an array of values; null for those that do not fit, with faults from row ``first``.

    If some values do not fit, smaller and smaller pieces are tried: three sizes for 10,000 values,
    so that each value is tried at most three more times.
    """
    try:
        return build(trees)
    except BodyFault as fault:
        if len(trees) == 1:
            faults[first] = fault
            return build([None])
    size = -(-len(trees) // _SLICES_MAX)
    pieces = range(0, len(trees), size)
    return pa.concat_arrays(
        [_build_array(trees[at : at + size], first + at, build, faults) for at in pieces]
    )


def _offsets(found: pa.Array) -> pa.Array:
    offsets = np.asarray(found.offsets)
    if not found.null_count:
        return pa.array(offsets, pa.int32())
    mask = np.append(np.asarray(pc.is_null(found)), False)  # False is a value, not a flag
    return pa.array(offsets, pa.int32(), mask=mask)


Cast = Callable[[pa.Array, pa.DataType], pa.Array]


def _cast_leaf(found: pa.Array, path: str, cast: Cast, kind: pa.DataType) -> pa.Array:
    try:
        return cast(found, kind)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise BodyFault(
            path, _describe_needed(kind), excerpt(_first_mismatched_value(found, cast, kind))
        ) from error


def _first_mismatched_value(found: pa.Array, cast: Cast, kind: pa.DataType) -> Any:
    while len(found) > 1:
        middle = len(found) // 2
        first = found.slice(0, middle)
        found = found.slice(middle) if _is_castable(first, cast, kind) else first
    return found[0].as_py()


def _is_castable(values: pa.Array, cast: Cast, kind: pa.DataType) -> bool:
    try:
        cast(values, kind)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True


def _describe_needed(kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        return "a date such as 2026-01-31"
    if pa.types.is_decimal(kind):
        return f"a number of {kind.precision} digits, {kind.scale} of them after the point"
    if pa.types.is_floating(kind):
        return "a number that fits into 32 bits"
    zone = ", with Z or +02:00 after it, or without" if kind.tz else " without a zone"
    return f"a time such as 2026-01-31T12:00:00.123456{zone}"


def _to_dates(found: pa.Array, kind: pa.DataType) -> pa.Array:
    return _check_bounds(found.cast(kind), pa.int32(), _FIRST_DAY, _LAST_DAY)


def _to_decimals(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert to decimals, and refuse numbers that pyarrow accepts although they do not fit."""
    numbers = found.cast(kind)
    if pa.types.is_string(found.type):
        is_long = pc.greater(pc.binary_length(found), _DECIMAL_DIGITS - kind.scale)
        is_unchecked = pc.or_(is_long, pc.match_substring(found, "e", ignore_case=True))
        for row in np.flatnonzero(pc.fill_null(is_unchecked, fill_value=False)):
            if Decimal(found[int(row)].as_py()) != numbers[int(row)].as_py():
                raise pa.ArrowInvalid("a number is too large")
    bounds = pc.min_max(numbers)
    largest = Decimal((0, (9,) * kind.precision, -kind.scale))
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    if first is not None and (first < -largest or last > largest):
        raise pa.ArrowInvalid("a number is too large")
    return numbers


def _to_float32(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert to 32-bit floats; refuse finite numbers that would become infinite."""
    wide = found.cast(pa.float64())
    narrow = found.cast(kind)
    if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(wide))).as_py():
        raise pa.ArrowInvalid("a number is too large")
    return narrow


def _to_zoned_timestamps(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert to timestamps; text without a zone is in UTC."""
    texts = _to_microseconds(found)
    has_zone = pc.match_substring_regex(texts, r":.*(Z|[+-]\d\d(:?\d\d)?)$")
    if pc.all(has_zone).as_py() is not False:
        return _check_years(texts.cast(kind))
    plain = pc.if_else(has_zone, pa.scalar(None, pa.string()), texts)
    with_zone = pc.if_else(has_zone, texts, pa.scalar(None, pa.string()))
    local = plain.cast(pa.timestamp("us")).cast(kind)
    return _check_years(pc.coalesce(with_zone.cast(kind), local))


def _to_local_timestamps(found: pa.Array, kind: pa.DataType) -> pa.Array:
    return _check_years(_to_microseconds(found).cast(kind))


def _to_microseconds(texts: pa.Array) -> pa.Array:
    """Return times with at most six fractional digits, as Spark has them."""
    longest = pc.max(pc.binary_length(texts)).as_py()
    if longest is None or longest <= len("2026-01-31T12:00:00.123456"):
        return texts
    return pc.replace_substring_regex(texts, r"(\.\d{6})\d{1,3}(\D|$)", r"\1\2")


def _check_years(times: pa.Array) -> pa.Array:
    _check_bounds(times.cast(pa.timestamp("us")), pa.int64(), _FIRST_US, _LAST_US)
    return times


def _check_bounds(times: pa.Array, number: pa.DataType, least: int, most: int) -> pa.Array:
    bounds = pc.min_max(times.cast(number))
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    if first is not None and (first < least or last > most):
        raise pa.ArrowInvalid("a time is not in the years 1 to 9999")
    return times
