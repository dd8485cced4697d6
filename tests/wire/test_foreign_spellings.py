"""Requests in the spellings of clients in other languages are read as RocketMQ's own classes read
them.

RocketMQ's parsers accept much that Java never writes. The vectors have every member of every body
and header that clients send, in every spelling of its type, and the values that RocketMQ 4.9.7 and
5.5.0 read. A spelling that either of them accepts must be accepted here as well; one that both
refuse may be refused.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.rocketmq import java_vectors

from rmq_spark.errors import RocketPollError
from rmq_spark.wire.bodies import clients, configs, decode_body, encode_body
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.header_json import decode_header

BODIES: dict[str, Any] = {
    "HeartbeatData": clients.HeartbeatData,
    "CheckClientRequestBody": clients.CheckClientRequestBody,
    "LockBatchRequestBody": clients.LockBatchRequestBody,
    "UnlockBatchRequestBody": clients.LockBatchRequestBody,
    "QueryAssignmentRequestBody": clients.QueryAssignmentRequestBody,
    "SubscriptionGroupConfig": configs.SubscriptionGroupConfig,
    "SubscriptionGroupList": configs.SubscriptionGroupList,
    "CreateTopicListRequestBody": configs.CreateTopicListRequestBody,
    "DataVersion": configs.DataVersion,
}
ROWS = [
    (version, row)
    for version in java_vectors.VERSIONS
    for row in java_vectors.load(version, "spellings")
]
REFUSED = object()
NULLS = ("null", '""', '"null"')
"""Spellings of null. Java reads some as 0; here they all count as absent."""
NO_SENSE = {
    "5L": "only a tolerant parser reads it, and headers have none",
    "1.5": "as a boolean the versions differ",
    "1e30": "Java cuts it off, each version in another way",
    '"0x5"': "5.5.0 reads 0",
    "-1": "as a boolean the versions differ",
    "[null]": "a null in an array is left out",
    "{}": "5.5.0 reads 0, or an element without any member",
    "[]": "as text, or null in place of an object",
    '{"a":1}': "as text",
    '["a"]': "as text",
    "1.50": "as text the number's spelling is lost",
    "5e2": "as text the number's spelling is lost",
    "12345678901234567890": "as text",
}
"""Values whose reading in Java helps no client; they may be read in any way, or refused."""


def members(kind: str) -> list[Any]:
    """Return the values that each version reads from each member, by its class and path."""
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for version, row in ROWS:
        if row["kind"] == kind:
            found.setdefault((row.get("class", ""), row["name"]), {})[version] = row
    return [pytest.param(*key, rows, id=key[1]) for key, rows in found.items()]


def bases(kind: str) -> dict[tuple[str, str], Any]:
    return {
        (version, row.get("class", "")): json.loads(row["text"])
        for version, row in ROWS
        if row["kind"] == kind
    }


BODY_BASES, COMMAND_BASES = bases("body"), bases("command")


def with_member(base: Any, at: list[Any], fragment: str) -> bytes:
    """Return the text with another spelling of a member, including its name, or of an element."""
    tree = json.loads(json.dumps(base))
    holder = tree
    for step in at[:-1]:
        holder = holder[step]
    if isinstance(holder, list):
        holder[at[-1]] = "an element"
        return json.dumps(tree).replace('"an element"', fragment).encode()
    del holder[at[-1]]
    holder["a member"] = 0
    return json.dumps(tree).replace('"a member": 0', fragment).encode()


def at_place(tree: Any, at: list[Any]) -> Any:
    for step in at:
        if isinstance(tree, list) and step >= len(tree):
            return None
        tree = tree[step] if isinstance(tree, list) else tree.get(step)
        if tree is None:
            return None
    return tree


def read_body(class_name: str, text: bytes) -> Any:
    """Return the body as a JSON tree."""
    try:
        body = decode_body(BODIES[class_name], text)
    except RocketPollError:
        return REFUSED
    return json.loads(encode_body(body))


def read_command(text: bytes) -> Any:
    try:
        header = decode_header(text)
    except RocketPollError:
        return REFUSED
    return {
        "code": header.code,
        "flag": header.flag,
        "opaque": header.opaque,
        "version": header.version,
        "language": header.language.name,
        "remark": header.remark,
        "extFields": dict(header.ext_fields),
    }


def is_unknown_language(spelling: str) -> bool:
    """Return whether the language is unknown. Java keeps null, or JAVA; here it is OTHER, so that
    lists of clients do not say JAVA."""
    return spelling in {
        '"language":"UNKNOWN"',
        '"language":"14"',
        '"language":""',
        '"language":"null"',
    }


def is_unknown_setting(spelling: str) -> bool:
    """Return whether a setting is unknown. Java keeps null; here a configuration with an unknown
    name is refused."""
    return spelling in {'"topicFilterType":"UNKNOWN"', '"topicFilterType":"2"'} | {
        f'"topicFilterType":{null}' for null in NULLS
    }


def disagreements(rows, base_of, read) -> list[str]:
    """Return the spellings of a member that RocketMQ reads, and that we read differently."""
    wrong = []
    for version, row in rows.items():
        base, at = base_of(version), row["at"]
        for name in row.get("names", ()):
            text = with_member(base, at, f"{json.dumps(name)}:{json.dumps(at_place(base, at))}")
            tree = read(text)
            if tree is REFUSED or at_place(tree, at) != at_place(
                read(json.dumps(base).encode()), at
            ):
                wrong.append(f"{version}: name {name}")
    spellings: dict[str, list[Any]] = {}
    for row in rows.values():
        for spelling, value in row["read"]:
            spellings.setdefault(spelling, []).append(value)
    row = next(iter(rows.values()))
    at, base = row["at"], base_of(next(reversed(rows)))
    for spelling, expected in spellings.items():
        value = spelling.partition(":")[2] if isinstance(at[-1], str) else spelling
        if (
            value in NO_SENSE
            or is_unknown_language(spelling)
            or is_unknown_setting(spelling)
            or (value == "1.0" and False in expected)
        ):
            continue
        readings = expected
        tree = read(with_member(base, at, spelling))
        found = tree if tree is REFUSED else at_place(tree, at)
        is_null = value in NULLS and any(
            each in (None, 0, False, [None], ["null"]) for each in expected
        )
        if is_null or all(each is None for each in expected):
            absent = read(with_member(base, at, '"none":0' if isinstance(at[-1], str) else "null"))
            readings = [REFUSED if absent is REFUSED else at_place(absent, at)]
        if not any(found is each or found == each for each in readings):
            shown = "refused" if found is REFUSED else found
            wrong.append(f"{spelling}: {shown} for {readings}")
    return wrong


@pytest.mark.parametrize(("class_name", "name", "rows"), members("member"))
def test_body_member_is_decoded_in_every_spelling_rocketmq_accepts(class_name, name, rows):
    if "SubscriptionGroup" in class_name and "subscriptionDataSet" in name:
        pytest.skip("kept as it is")
    assert not disagreements(
        rows,
        lambda version: BODY_BASES[version, class_name],
        lambda text: read_body(class_name, text),
    )


@pytest.mark.parametrize(("class_name", "name", "rows"), members("command-member"))
def test_json_header_field_is_decoded_in_every_spelling_rocketmq_accepts(class_name, name, rows):
    if "serializeTypeCurrentRPC" in name:
        pytest.skip("the frame says it")
    if "remark" in name:
        pytest.skip("no request has one")
    assert not disagreements(rows, lambda version: COMMAND_BASES[version, ""], read_command)


def codecs_of(code: int) -> Any:
    exchange = HEADERS.get(code)
    return exchange.request if exchange is not None else None


FULL_EXT = {
    (version, frame["requestCode"]): frame["ext"]
    for version in java_vectors.VERSIONS
    for frame in java_vectors.load(version, "frames")
    if frame["name"].endswith("-request-full-JSON")
}


@pytest.mark.parametrize(
    ("version", "row"),
    [
        pytest.param(version, row, id=f"{version}-{row['fields'][0]}")
        for version, row in ROWS
        if row["kind"] == "header"
    ],
)
def test_fields_of_a_request_are_read_as_rocketmq_reads_them(version, row):
    """Numbers have Java's form; text without one is 0 or null in Java, and here an error."""
    wrong = []
    for code, key in row["fields"]:
        codec = codecs_of(code)
        if codec is None or key not in codec.keys:
            continue
        at = codec.keys.index(key)
        for text, expected in row["read"]:
            try:
                found = codec.decode({**FULL_EXT[version, code], key: text})[at]
            except RocketPollError:
                found = REFUSED
            if key == "boundaryType":  # readers treat everything but UPPER as LOWER
                continue
            if found != expected and not (
                expected in (None, 0, -1) and (found is REFUSED or not text)
            ):
                wrong.append((code, key, text, found, expected))
    assert not wrong


READ_TEXTS = {
    "comma after the last member",
    "comma after the last element",
    "blanks",
    "escaped letters",
    "escaped slash",
    "line break in a text",
    "tab in a text",
    "a name twice",
    "a name in two cases",
    "a name in two cases, exact first",
    "unknown members",
}
"""Texts of bodies that are read; RocketMQ reads more, which no known client sends."""


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=f"{version}-{row['name']}")
        for version, row in ROWS
        if row["kind"] == "text"
    ],
)
def test_non_strict_json_is_decoded_as_by_rocketmq_or_refused(row):
    tree = read_body(row["class"], row["text"].encode())
    spelling = row["name"].partition(": ")[2]
    assert (tree is not REFUSED) == (spelling in READ_TEXTS)
    if tree is not REFUSED and "cases" not in spelling:
        assert tree["clientID"] == row["value"]["clientID"]
