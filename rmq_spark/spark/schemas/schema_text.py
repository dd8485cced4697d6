"""Schema text: parses option ``bodySchema`` to Spark types without a JVM.

    id BIGINT, lines ARRAY<STRUCT<sku: STRING, price: DECIMAL(9,2)>>      DDL, as in Spark SQL
    {"type":"struct","fields":[...]}                                      a schema's .json()

Spark parses DDL in its JVM, which the Python process that checks options does not have: so this
module parses the part of DDL that bodies can have. Types that no body can have are refused with the
field's path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pyspark.sql import types as sql

from rmq_spark.errors import excerpt
from rmq_spark.spark.schemas.columns import duplicates

_TOKENS: Final = re.compile(
    r"\s*(?:`((?:[^`]|``)+)`|([<>(),:])|('(?:[^'\\]|\\.|'')*')|([^\s<>(),:`']+))"
)
_TYPES_BY_NAME: Final[Mapping[str, Callable[[], sql.DataType]]] = {
    "string": sql.StringType,
    "boolean": sql.BooleanType,
    "tinyint": sql.ByteType,
    "byte": sql.ByteType,
    "smallint": sql.ShortType,
    "short": sql.ShortType,
    "int": sql.IntegerType,
    "integer": sql.IntegerType,
    "bigint": sql.LongType,
    "long": sql.LongType,
    "float": sql.FloatType,
    "real": sql.FloatType,
    "double": sql.DoubleType,
    "date": sql.DateType,
    "timestamp": sql.TimestampType,
    "timestamp_ltz": sql.TimestampType,
    "timestamp_ntz": sql.TimestampNTZType,
    "binary": sql.BinaryType,
}
_DEPTH_MAX: Final = 60
"""Most nested types in a column; pyarrow supports 63, and `bodyColumn` uses one of them."""

_DECIMALS: Final = ("decimal", "dec", "numeric")
_SIMPLE_TYPES: Final = tuple({kind for kind in _TYPES_BY_NAME.values() if isinstance(kind, type)})
_KINDS: Final = (
    "string, boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s), date, "
    "timestamp, timestamp_ntz, binary, struct<...>, array<...> and map<string,...>"
)


def parse_schema(text: str) -> sql.StructType:
    """Return the schema that DDL, or the JSON of a Spark schema, describes."""
    try:
        return _DdlParser(text).schema() if not text.lstrip().startswith("{") else _from_json(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _from_json(text: str) -> sql.StructType:
    try:
        document = json.loads(text)
        found = sql.StructType.fromJson(document)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"not a schema as df.schema.json() returns it ({error!r})") from error
    if document["type"] != "struct":
        kind = excerpt(document["type"])
        raise ValueError(f"not a schema as df.schema.json() returns it (a {kind})")
    return found


def schema_faults(schema: sql.StructType) -> list[str]:
    """Return a line for each part of a schema that no body can have; empty if there is none."""
    if not schema.fields:
        return ["it has no fields"]
    if too_deep := nesting_faults(schema):
        return too_deep
    return [fault for field in schema.fields for fault in _field_faults(field, field.name)] + [
        f"{name} occurs twice" for name in _duplicate_names(schema, is_top=True)
    ]


def nesting_faults(schema: sql.StructType) -> list[str]:
    """Return a line for each field that is nested deeper than rows can be."""
    depths = [(field.name, _depth(field.dataType)) for field in schema.fields]
    return [
        f"{name} is nested {depth} levels deep, over the {_DEPTH_MAX} of Arrow, which transfers "
        "the rows"
        for name, depth in depths
        if depth > _DEPTH_MAX
    ]


def type_mismatches(given: sql.DataType, needed: sql.DataType, path: str = "") -> list[str]:
    """Return a line for each part of a column that bodies of a known schema do not have.

    Columns may lack fields. Whether values can be null is not compared.
    """
    if isinstance(given, sql.StructType) and isinstance(needed, sql.StructType):
        known = {field.name: field.dataType for field in needed.fields}
        names = [f"{path}.{name}".removeprefix(".") for name in duplicates(given.fieldNames())]
        found = [f"column {name} occurs twice: keep one" for name in names]
        for field in given.fields:
            field_path = f"{path}.{field.name}".removeprefix(".")
            if field.name in known:
                found += type_mismatches(field.dataType, known[field.name], field_path)
            else:
                known_names = ", ".join(known)
                found.append(
                    f"bodies have no field {field_path} for column {field_path}, only {known_names}"
                )
        return found
    if isinstance(given, sql.ArrayType) and isinstance(needed, sql.ArrayType):
        return type_mismatches(given.elementType, needed.elementType, f"{path}[]")
    if isinstance(given, sql.MapType) and isinstance(needed, sql.MapType):
        return type_mismatches(given.keyType, needed.keyType, f"{path} (key)") + type_mismatches(
            given.valueType, needed.valueType, f"{path}[]"
        )
    kind, right = (each.simpleString().partition(" collate ")[0] for each in (given, needed))
    return [] if kind == right else [f"column {path} is {kind}, but bodies have {right}: cast it"]


def _depth(kind: sql.DataType) -> int:
    """Return how deep arrays, structs and maps are nested; each map counts for two.

    There may be thousands of levels, so this does not recurse.
    """
    depth, within = 0, [kind]
    while within := [inner for each in within for inner in _inner_types(each)]:
        depth += 1
    return depth


def _inner_types(kind: sql.DataType) -> list[sql.DataType]:
    if isinstance(kind, sql.StructType):
        return [field.dataType for field in kind.fields]
    if isinstance(kind, sql.ArrayType):
        return [kind.elementType]
    if isinstance(kind, sql.MapType):  # Arrow has a map as an array of structs
        return [sql.StructType([sql.StructField("value", kind.valueType)])]
    return []


def writable_schema_faults(schema: sql.StructType) -> list[str]:
    """Return a line for each part of a data frame's columns that no body can be made from."""
    if any(_depth(field.dataType) > _DEPTH_MAX for field in schema.fields):
        return schema_faults(schema)
    return schema_faults(_nullable(schema))


def _nullable(kind: Any) -> Any:
    """Return a type with all its parts nullable; in the schema of a data frame they may not be."""
    if isinstance(kind, sql.StructType):
        return sql.StructType(
            [sql.StructField(each.name, _nullable(each.dataType)) for each in kind.fields]
        )
    if isinstance(kind, sql.ArrayType):
        return sql.ArrayType(_nullable(kind.elementType))
    if isinstance(kind, sql.MapType):
        return sql.MapType(kind.keyType, _nullable(kind.valueType))
    return kind


def _field_faults(field: sql.StructField, path: str) -> Iterator[str]:
    if not field.nullable:
        yield f"{path} can be null, because a body may lack it: declare it without NOT NULL"
    yield from _type_faults(field.dataType, path)


def _type_faults(kind: sql.DataType, path: str) -> Iterator[str]:
    if isinstance(kind, sql.StructType):
        if not kind.fields:
            yield f"{path} is a struct without fields"
        for field in kind.fields:
            yield from _field_faults(field, f"{path}.{field.name}")
        for name in _duplicate_names(kind, is_top=False):
            yield f"{path}.{name} occurs twice"
    elif isinstance(kind, sql.ArrayType):
        if not kind.containsNull:
            yield f"elements of {path} can be null: declare it with containsNull"
        yield from _type_faults(kind.elementType, f"{path}[]")
    elif isinstance(kind, sql.MapType):
        yield from _map_faults(kind, path)
    elif type(kind) not in (*_SIMPLE_TYPES, sql.DecimalType):
        yield f"{path} is {kind.simpleString()}: needed one of {_KINDS}"


def _map_faults(kind: sql.MapType, path: str) -> Iterator[str]:
    if type(kind.keyType) is not sql.StringType:
        yield f"{path} has keys of {kind.keyType.simpleString()}: needed string"
    if not kind.valueContainsNull:
        yield f"values of {path} can be null: declare it with valueContainsNull"
    yield from _type_faults(kind.valueType, f"{path}[]")


def _duplicate_names(schema: sql.StructType, *, is_top: bool) -> list[str]:
    """Return names that occur twice; names of columns must differ in more than case."""
    names = [name.lower() if is_top else name for name in schema.fieldNames()]
    return sorted(duplicates(names))


class _DdlParser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, bool]] = []  # text, and whether it can only be a name
        at = 0
        text = text.rstrip()
        while at < len(text):
            match = _TOKENS.match(text, at)
            if match is None:
                raise ValueError(f"not valid DDL, starting at {excerpt(text[at:])}")
            quoted = match[1]
            self._tokens.append(
                (quoted.replace("``", "`"), True)
                if quoted is not None
                else (match[2] or match[3] or match[4], False)
            )
            at = match.end()
        self._at = 0

    def schema(self) -> sql.StructType:
        if self._peek() == "struct" and self._peek(1) == "<":
            kind = self._type()
        else:
            kind = self._fields("")
        if self._at < len(self._tokens) or not isinstance(kind, sql.StructType):
            raise self._error("a comma, or the end")
        return kind

    def _fields(self, end: str) -> sql.StructType:
        fields: list[sql.StructField] = []
        while self._at < len(self._tokens) and (not end or self._peek() != end):
            if fields:
                self._expect(",")
            name, is_quoted = self._next("the name of a field")
            if not is_quoted and name in "<>(),:":
                self._at -= 1
                raise self._error("the name of a field")
            if self._peek() == ":":
                self._at += 1
            kind, is_nullable = self._type(), True
            if self._peek() == "not" and self._peek(1) == "null":
                self._at, is_nullable = self._at + 2, False
            if self._peek() == "comment":
                self._at += 2
            fields.append(sql.StructField(name, kind, is_nullable))
        return sql.StructType(fields)

    def _type(self) -> sql.DataType:
        name = self._next("a type")[0].lower()
        if name in ("struct", "array", "map"):
            self._expect("<")
            found: sql.DataType
            if name == "struct":
                found = self._fields(">")
            elif name == "array":
                found = sql.ArrayType(self._type())
            else:
                key = self._type()
                self._expect(",")
                found = sql.MapType(key, self._type())
            self._expect(">")
            return found
        if name in _DECIMALS:
            return self._decimal()
        if name not in _TYPES_BY_NAME:
            self._at -= 1
            raise self._error(f"a type of bodies ({_KINDS})")
        return _TYPES_BY_NAME[name]()

    def _decimal(self) -> sql.DecimalType:
        numbers: list[int] = []
        if self._peek() == "(":
            while self._peek() != ")":
                self._at += 1  # the bracket, or a comma
                number = self._next("a number of digits")[0]
                if not number.isdigit():
                    self._at -= 1
                    raise self._error("a number of digits")
                numbers.append(int(number))
            self._at += 1
        precision, scale = (*numbers, *(10, 0)[len(numbers) :])[:2]
        if len(numbers) > 2 or not scale <= precision <= 38 or not precision:
            raise ValueError("needed decimal(p,s) with 1 to 38 digits, s of them after the point")
        return sql.DecimalType(precision, scale)

    # ---- tokens

    def _peek(self, further: int = 0) -> str:
        at = self._at + further
        return "" if at >= len(self._tokens) or self._tokens[at][1] else self._tokens[at][0].lower()

    def _next(self, needed: str) -> tuple[str, bool]:
        if self._at >= len(self._tokens):
            raise self._error(needed)
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise self._error(sign)
        self._at += 1

    def _error(self, needed: str) -> ValueError:
        if self._at >= len(self._tokens):
            return ValueError(f"needed {needed}, found the end")
        before = self._tokens[self._at - 1][0] if self._at else ""
        where = f" after {excerpt(before)}" if before else ""
        return ValueError(f"needed {needed}{where}, found {excerpt(self._tokens[self._at][0])}")
