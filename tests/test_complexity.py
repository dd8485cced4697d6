"""Parsers of foreign data take time in proportion to its size, whatever its shape.

Each case is a reader of foreign data and a shape of input. It reads an input of some size and one
that is eight times as large, and may take 24 times as long: three times as long as a linear reader,
which leaves room for caches and other processes, and much less than a quadratic one, which takes 64
times as long. The tests measure the CPU time of the thread. A case over the bound is measured
again, and its minimum counts, so that a busy machine does not fail it.
"""

import contextlib
import gc
import json
import logging
import time
import zlib

import pyarrow as pa
import pytest
from support.spark.body_rows import batches
from support.suite.selection import spread

from rmq_spark.client.api.name_servers import parse_addresses
from rmq_spark.client.manifest import (
    CommitManifest,
    CommitState,
    CommittedSpan,
    ManifestId,
    decode_manifest,
)
from rmq_spark.client.message import decode_messages
from rmq_spark.client.subscriptions import by_tag, subscription_data
from rmq_spark.client.transport.connection import parse_address
from rmq_spark.errors import RocketPollError
from rmq_spark.spark.bodies.decoder import MissingFieldsWarning
from rmq_spark.spark.options.options import read_options
from rmq_spark.spark.options.start_positions import parse_positions
from rmq_spark.spark.plan.source_offset import SourceOffset
from rmq_spark.spark.schemas.avro_schema import avro_encoder, avro_schema_of
from rmq_spark.spark.schemas.columns import check_columns, duplicates
from rmq_spark.spark.schemas.schema_text import parse_schema, schema_faults
from rmq_spark.wire.bodies import fastjson
from rmq_spark.wire.bodies.body_codec import decode_body, unknown_members
from rmq_spark.wire.bodies.clients import HeartbeatData
from rmq_spark.wire.bodies.configs import (
    ConsumerOffsetSerializeWrapper,
    TopicConfigSerializeWrapper,
)
from rmq_spark.wire.bodies.incremental_codec import decode_body_in_steps
from rmq_spark.wire.bodies.operators import ConsumeStats
from rmq_spark.wire.chunk import RecordChunk, chunk_columns
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import uncompress_body
from rmq_spark.wire.message.message_batch import BatchedMessage, decode_batch, encode_batch
from rmq_spark.wire.message.properties import decode_properties
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting import header_json, header_msgpack, header_rocketmq
from rmq_spark.wire.remoting.framing import FrameReader
from rocketpoll.broker.filter.filter_limits import FilterLimits
from rocketpoll.broker.filter.sql_parser import compile_sql
from rocketpoll.broker.filter.subscription import build_subscription_data, message_filter
from rocketpoll.broker.settings.settings import config_of

GROWTH = 8
TOLERANCE = 3
TRIES = 5
SECONDS_MIN = 0.001
"""Shorter times depend on the clock's resolution as much as on the reader."""


def seconds(read, given):
    """Return the CPU time of a reader; a refusal of the input counts as a result."""
    begin = time.thread_time()
    with contextlib.suppress(RocketPollError, ValueError):
        read(given)
    return time.thread_time() - begin


def growth(make, size, read):
    """Return how many times as long a `GROWTH` times larger input takes."""
    small_input, large_input = make(size), make(GROWTH * size)
    small = large = float("inf")
    seconds(read, small_input)  # loads modules and fills caches
    for _ in range(TRIES):
        small = min(small, seconds(read, small_input))
        large = min(large, seconds(read, large_input))
        if not 1 < large / max(small, SECONDS_MIN) / (GROWTH * TOLERANCE) < 4:
            break  # another attempt changes nothing
    return large / max(small, SECONDS_MIN)


# ---- bodies of messages


def typed(schema, kind="json"):
    return lambda bodies: batches(bodies, schema, kind, onBadRecord="skip")


def members(count, name=b'"k%d":1', last=b'"k0":2'):
    return b",".join([name % at for at in range(count)] + [last])


def lists_of(count, item, last):
    return b"[" + b",".join([item] * count + [last]) + b"]"


MAP = "m MAP<STRING, BIGINT>"
AVRO = parse_schema("v BIGINT, l ARRAY<STRING>, m MAP<STRING, BIGINT>")


def avro(count):
    record = {"v": 1, "l": ["x"] * count, "m": {f"k{at}": at for at in range(count)}}
    return [avro_encoder(avro_schema_of(AVRO))(record)]


def msgpack_object(pair):
    return b"\x81" + pair


def msgpack_map(count, numbers):
    head = b"\xdf" + count.to_bytes(4, "big")
    return head + b"".join(b"\xa8%08d\x01" % number for number in numbers)


BODIES = {
    "a map with a repeated name": (
        lambda n: [b'{"m":{' + members(n) + b"}}"],
        1_000,
        typed(MAP),
    ),
    "a map with all names repeated": (
        lambda n: [b'{"m":{' + members(n) + b"," + members(n) + b"}}"],
        700,
        typed(MAP),
    ),
    "a bad body with a repeated name in an object that no column reads": (
        lambda n: [b'{"v":"x","x":{' + members(n) + b"}}"],
        1_000,
        typed("v BIGINT"),
    ),
    "an object with a repeated name": (
        lambda n: [b'{"v":1,"v":2,' + members(n) + b"}"],
        1_000,
        typed("v BIGINT"),
    ),
    "an object with many names": (
        lambda n: [b'{"v":1,' + members(n, last=b'"z":1') + b"}"],
        10_000,
        typed("v BIGINT"),
    ),
    "a long name above many names": (
        lambda n: [b'{"m":{"' + b"k" * 100 * n + b'":{' + members(n, last=b'"z":1') + b"}}}"],
        1_500,
        typed("m MAP<STRING, MAP<STRING, BIGINT>>"),
    ),
    "a long name above many elements": (
        lambda n: [b'{"m":{"' + b"k" * 100 * n + b'":' + lists_of(n, b"1", b"2") + b"}}"],
        2_000,
        typed("m MAP<STRING, ARRAY<BIGINT>>"),
    ),
    "arrays within each other": (
        lambda n: [b'{"v":' + b"[" * n + b"]" * n + b"}"] * 3,
        20_000,
        typed("v BIGINT"),
    ),
    "objects within each other": (
        lambda n: [b'{"v":1,"x":' + b'{"a":' * n + b"1" + b"}" * n + b"}"] * 3,
        20_000,
        typed(f"v BIGINT, {MAP}"),
    ),
    "a long array whose last date is none": (
        lambda n: [b'{"v":' + lists_of(n, b'"2026-01-31"', b'"x"') + b"}"],
        3_000,
        typed("v ARRAY<DATE>"),
    ),
    "a long array whose last decimal is too large": (
        lambda n: [b'{"v":' + lists_of(n, b"1.5", b"1e9") + b"}"],
        2_000,
        typed("v ARRAY<DECIMAL(5,2)>"),
    ),
    "a long text": (
        lambda n: [b'{"v":"' + b"\\u00e9" * n + b'"}'] * 3,
        10_000,
        typed("v STRING, b BINARY"),
    ),
    "a long text that is no date": (
        lambda n: [b'{"v":"' + b"1" * n + b'"}'] * 3,
        100_000,
        typed("v DATE"),
    ),
    "a long text of base64": (
        lambda n: [b'{"v":"' + b"QUJD" * n + b'"}'],
        100_000,
        typed("v BINARY"),
    ),
    "a long whole number": (lambda n: [b'{"v":' + b"1" * n + b"}"] * 3, 100_000, typed("v BIGINT")),
    "a long number": (
        lambda n: [b'{"v":' + b"1" * n + b".5e-" + b"1" * n + b"}"] * 3,
        50_000,
        typed("v DOUBLE"),
    ),
    "a long decimal": (
        lambda n: [b'{"v":0.' + b"1" * n + b"}"] * 3,
        50_000,
        typed("v DECIMAL(38,18)"),
    ),
    "a long decimal with an exponent": (
        lambda n: [b'{"v":"' + b"1" * n + b"e-" + b"%d" % n + b'"}'] * 3,
        50_000,
        typed("v DECIMAL(38,18)"),
    ),
    "spaces behind commas": (
        lambda n: [b'{"v":[' + b"1," + b" " * n + b"NaN" + b"]}"],
        200_000,
        typed("v ARRAY<DOUBLE>"),
    ),
    "many bad bodies": (
        lambda n: [b'{"v":%d}' % at if at % 7 else b'{"v":' for at in range(n)],
        300,
        typed("v BIGINT"),
    ),
    "many bodies whose dates are none": (
        lambda n: [b'{"v":"2026-01-31"}' if at % 7 else b'{"v":"x"}' for at in range(n)],
        100,
        typed("v DATE"),
    ),
    "one bad body among many": (
        lambda n: [b'{"v":1}'] * n + [b'{"v":"x"}'],
        1_000,
        typed("v BIGINT"),
    ),
    "one bad body among many with maps": (
        lambda n: [b'{"m":{"a":1}}'] * n + [b'{"m":1}'],
        400,
        typed(MAP),
    ),
    "an Avro body": (avro, 1_500, typed(json.dumps(avro_schema_of(AVRO)), "avro")),
    "a cut Avro body": (
        lambda n: [body[:-1] for body in avro(n)],
        1_500,
        typed(json.dumps(avro_schema_of(AVRO)), "avro"),
    ),
    "many bad Avro bodies": (
        lambda n: [body if at % 7 else body[:-1] for at in range(n) for body in avro(1)],
        200,
        typed(json.dumps(avro_schema_of(AVRO)), "avro"),
    ),
    "a MessagePack map with all names repeated": (
        lambda n: [msgpack_object(b"\xa1m" + msgpack_map(2 * n, [*range(n), *range(n)]))],
        700,
        typed(MAP, "msgpack"),
    ),
    "a MessagePack list that claims more than there is": (
        lambda n: [msgpack_object(b"\xa1m\xdd\xff\xff\xff\xff" + b"\x01" * n)] * 3,
        50_000,
        typed(MAP, "msgpack"),
    ),
    "bodies without a field of the schema": (
        lambda n: [b"{" + members(n, last=b'"z":1') + b"}"],
        5_000,
        lambda bodies: MissingFieldsWarning(["v"]).check(
            "orders", pa.array(bodies), pa.array([{"v": None}], pa.struct({"v": pa.int64()}))
        ),
    ),
}

# ---- records, batches, frames


def record(properties="", body=b"body"):
    return encode_record(StoredMessage("orders", body, properties_text=properties))


def columns_of(*names):
    return lambda records: chunk_columns(RecordChunk(records), names)


def fed(step):
    def read(data):
        reader = FrameReader()
        for at in range(0, len(data), step):
            reader.feed(data[at : at + step])
            while reader.next_frame() is not None:
                pass

    return read


FRAME = b"\0\0\0\x08\0\0\0\x02{}xy"

RECORDS = {
    "records": (
        lambda n: b"".join([record("TAGS\1a\2KEYS\1b c\2")] * n),
        2_000,
        columns_of("topic", "body", "tags", "keys", "properties", "msgId"),
    ),
    "records, one by one": (
        lambda n: b"".join([record("TAGS\1a\2KEYS\1b c\2")] * n),
        100,
        lambda records: [*decode_messages(records, "broker-a")],
    ),
    "a damaged record at the end": (
        lambda n: b"".join([record()] * n) + b"\0" * 50,
        4_000,
        columns_of("body"),
    ),
    "properties without a value": (
        lambda n: record("\2" * n) * 10,
        4_000,
        columns_of("tags", "properties"),
    ),
    "properties without a separator": (
        lambda n: record("TAGS" * n) * 10,
        1_000,
        columns_of("tags", "properties"),
    ),
    "separators of names": (
        lambda n: record("\1" * n) * 10,
        4_000,
        columns_of("tags", "properties"),
    ),
    "many properties": (
        lambda n: record("".join(f"{at}\1v\2" for at in range(n)) + "TAGS\1a\2") * 10,
        450,
        columns_of("tags", "keys", "properties"),
    ),
    "one property again and again": (
        lambda n: record("TAGS\1a\2" * n) * 10,
        450,
        columns_of("tags", "keys", "properties"),
    ),
    "a text of properties": (
        lambda n: "".join(f"{at}\1v\2\2\1" for at in range(n)),
        5_000,
        decode_properties,
    ),
    "a batch of messages": (
        lambda n: encode_batch([BatchedMessage(b"x" * (at % 7)) for at in range(n)]),
        1_000,
        decode_batch,
    ),
    "a batch of messages with many properties": (
        lambda n: encode_batch([BatchedMessage(b"x", "a\1b\2" * 1_000)] * n),
        15,
        lambda data: [each.properties for each in decode_batch(data)],
    ),
    "frames in small pieces": (lambda n: FRAME * n, 300, fed(5)),
    "a large frame in small pieces": (
        lambda n: n.to_bytes(4, "big") + b"\0\0\0\x02{}" + b"x" * n,
        100_000,
        fed(50),
    ),
    "many frames at once": (lambda n: FRAME * n, 2_000, fed(1 << 30)),
    "a compressed body": (
        lambda n: zlib.compress(b"x" * n),
        500_000,
        lambda body: uncompress_body(body, MessageSysFlag.COMPRESSED),
    ),
    "compressed bytes behind compressed bytes": (
        lambda n: zlib.compress(b"x") * n,
        400_000,
        lambda body: uncompress_body(body, MessageSysFlag.COMPRESSED),
    ),
}

# ---- headers and the bodies of requests and answers


def header(ext_fields):
    return json.dumps({"code": 11, "language": "JAVA", "extFields": ext_fields}).encode()


def binary_header(ext_fields):
    pairs = b"".join(
        len(name).to_bytes(2, "big") + name + len(value).to_bytes(4, "big") + value
        for name, value in ext_fields
    )
    head = (11).to_bytes(2, "big") + b"\0" + (409).to_bytes(2, "big") + b"\0" * 8 + b"\0" * 4
    return head + len(pairs).to_bytes(4, "big") + pairs


def body_of(kind):
    return lambda data: decode_body(kind, data)


def in_steps(kind):
    return lambda data: [*decode_body_in_steps(kind, data)]


def offset_table(count):
    queues = ",".join(f"{at}:7" for at in range(count))
    return ('{"offsetTable":{"a@b":{' + queues + "}}}").encode()


def stats_table(count):
    key = '{{"brokerName":"b","queueId":{},"topic":"t"}}:{{"brokerOffset":1}}'
    return ('{"offsetTable":{' + ",".join(key.format(at) for at in range(count)) + "}}").encode()


def clients(count, tags):
    data = {"topic": "t", "subString": "a", "tagsSet": [f"t{at}" for at in range(tags)]}
    groups = [{"groupName": f"g{at}", "subscriptionDataSet": [data]} for at in range(count)]
    return json.dumps({"clientID": "c", "consumerDataSet": groups}).encode()


def topics(count):
    return json.dumps(
        {"topicConfigTable": {f"t{at}": {"topicName": f"t{at}"} for at in range(count)}}
    ).encode()


REQUESTS = {
    "a JSON header with many fields": (
        lambda n: header({f"k{at}": "v" for at in range(n)}),
        5_000,
        header_json.decode_header,
    ),
    "a JSON header with numbers as fields": (
        lambda n: header({f"k{at}": at for at in range(n)}),
        5_000,
        header_json.decode_header,
    ),
    "a JSON header of arrays within each other": (
        lambda n: b"[" * n + b"]" * n,
        100_000,
        header_json.decode_header,
    ),
    "a JSON header with a long number": (
        lambda n: b'{"code":' + b"1" * n + b"}",
        500_000,
        header_json.decode_header,
    ),
    "a binary header with many fields": (
        lambda n: binary_header([(b"k%d" % at, b"v") for at in range(n)]),
        5_000,
        header_rocketmq.decode_header,
    ),
    "a binary header with one field again and again": (
        lambda n: binary_header([(b"k", b"v")] * n),
        5_000,
        header_rocketmq.decode_header,
    ),
    "a binary header with a long field": (
        lambda n: binary_header([(b"k", b"v" * n)]),
        1_000_000,
        header_rocketmq.decode_header,
    ),
    "a MessagePack header of arrays within each other": (
        lambda n: b"\x91" * n,
        100_000,
        header_msgpack.decode_header,
    ),
    "offsets, as Java writes them": (
        offset_table,
        1_000,
        body_of(ConsumerOffsetSerializeWrapper),
    ),
    "offsets, in steps": (offset_table, 1_000, in_steps(ConsumerOffsetSerializeWrapper)),
    "a map whose keys are objects": (stats_table, 200, body_of(ConsumeStats)),
    "a map whose keys are objects, in steps": (stats_table, 200, in_steps(ConsumeStats)),
    "arrays within each other, as Java writes them": (
        lambda n: b"[1," * n,
        50_000,
        fastjson.loads,
    ),
    "a long text, as Java writes it": (
        lambda n: b'{1:"' + b"\\u00e9" * n + b'"}',
        20_000,
        fastjson.loads,
    ),
    "a text without an end": (lambda n: b'{1:"' + b"x\\n" * n, 20_000, fastjson.loads),
    "a long number, as Java writes it": (
        lambda n: b"{1:-" + b"1" * n + b"}",
        500_000,
        fastjson.loads,
    ),
    "signs": (lambda n: b"{1:" + b"-" * n, 1_000_000, fastjson.loads),
    "blanks": (lambda n: b"{1:" + b" " * n + b"}", 500_000, fastjson.loads),
    "references to one object": (
        lambda n: b'{"a":{"b":1},"c":[' + b",".join([b'{"$ref":"$.a"}'] * n) + b"]}",
        1_500,
        fastjson.loads,
    ),
    "references to many objects": (
        lambda n: (
            b'{"a":['
            + b",".join([b'{"b":1}'] * n)
            + b'],"c":['
            + b",".join(b'{"$ref":"$.a[%d]"}' % at for at in range(n))
            + b"]}"
        ),
        500,
        fastjson.loads,
    ),
    "references that refer to each other": (
        lambda n: (
            b"[" + b",".join(b'{"$ref":"$[%d]"}' % (at + 1) for at in range(n)) + b',{"b":1}]'
        ),
        1_000,
        fastjson.loads,
    ),
    "a heartbeat with many groups": (lambda n: clients(n, 3), 300, body_of(HeartbeatData)),
    "a heartbeat with many tags": (lambda n: clients(1, n), 3_000, body_of(HeartbeatData)),
    "members that a heartbeat does not have": (
        lambda n: json.dumps({f"x{at}": at for at in range(n)}).encode(),
        3_000,
        lambda data: unknown_members(HeartbeatData, data),
    ),
    "configurations of topics": (topics, 500, body_of(TopicConfigSerializeWrapper)),
}

# ---- expressions, options and files

WIDE = FilterLimits(expression_bytes_max=1 << 30, depth_max=200, nodes_max=1 << 30)


def sql(text):
    compile_sql.cache_clear()
    compile_sql(text, WIDE)


def tags(count):
    return " || ".join(f"tag{at}" for at in range(count))


def positions(topics_count, queues_count):
    queues = {str(at): 7 for at in range(queues_count)}
    return json.dumps({f"t{at}": {"b": queues} for at in range(topics_count)})


def read_positions(text):
    found = parse_positions("startingOffsets", text)
    for topic in found.topics:
        found.position_of(topic, "b", 0)
        found.named_queues(topic)
        found.has_broker_level(topic)


def source_offset(topics_count, queues_count):
    tree = json.loads(positions(topics_count, queues_count))
    return {"v": 1, "offsets": tree, "stored": tree, "marks": tree}


def manifest(count):
    spans = tuple(CommittedSpan(MessageQueue("t", "b", at % 9), at, 1, 1, 1) for at in range(count))
    whole = CommitManifest("t", ManifestId("q", "w", 1, "r"), spans)
    return whole.encode_final_message(spans, [])


def manifest_in_parts(count):
    whole = decode_manifest(manifest(count))
    early, last = whole.encode_parts(2_000)
    return whole.encode_final_message(last, range(len(early))), dict(enumerate(early))


TEXTS = {
    "an expression with many ORs": (
        lambda n: " OR ".join(f"a{at} = {at}" for at in range(n)),
        200,
        sql,
    ),
    "an expression with many ANDs and ORs": (
        lambda n: " OR ".join([f"a > {at} AND b < {at}" for at in range(n)]),
        100,
        sql,
    ),
    "an expression within brackets": (lambda n: "(" * n + "a = 1" + ")" * n, 3_000, sql),
    "an expression behind many NOTs": (lambda n: "NOT " * n + "a = 1", 3_000, sql),
    "an expression with many signs": (lambda n: "a = " + "-" * n + "1", 1_500, sql),
    "an expression with a long text": (lambda n: "a = '" + "x''" * n + "'", 20_000, sql),
    "an expression with a text without an end": (lambda n: "a = '" + "x''" * n, 20_000, sql),
    "an expression with a long number": (lambda n: "a = " + "1" * n, 50_000, sql),
    "an expression with a long fraction": (
        lambda n: "a = 1." + "1" * n + "e" + "1" * n,
        50_000,
        sql,
    ),
    "an expression with many values": (
        lambda n: "a IN (" + ",".join(f"'{at}'" for at in range(n)) + ")",
        1_000,
        sql,
    ),
    "an expression with many comments": (
        lambda n: "/* x */ -- y\n" * n + "/*" * n,
        5_000,
        sql,
    ),
    "an expression with a long name": (lambda n: "a" * n + " = 1", 100_000, sql),
    "tags, as a broker reads them": (
        tags,
        500,
        lambda text: message_filter(build_subscription_data("t", text), by_text=True),
    ),
    "tags, as a consumer reads them": (
        tags,
        1_000,
        lambda text: subscription_data("t", by_tag(text), 0),
    ),
    "bars": (lambda n: "|" * n, 20_000, lambda text: build_subscription_data("t", text)),
    "addresses": (
        lambda n: ";".join(f"10.0.0.1:{at}" for at in range(n)),
        4_000,
        parse_addresses,
    ),
    "separators of addresses": (lambda n: " ;," * n + "x", 50_000, parse_addresses),
    "topics to read": (
        lambda n: {"namesrvAddr": "a:1", "subscribe": ",".join(f"t{at}" for at in range(n))},
        1_000,
        read_options,
    ),
    "a pattern of topics": (
        lambda n: {"namesrvAddr": "a:1", "subscribePattern": "|".join(["a+b*"] * n)},
        200,
        read_options,
    ),
    "columns": (
        lambda n: ["body", "topic"] * n,
        1_000,
        check_columns,
    ),
    "columns of a schema": (
        lambda n: parse_schema(", ".join(f"a{at} INT" for at in range(n)) + ", a0 INT"),
        4_000,
        lambda schema: duplicates(schema.fieldNames()),
    ),
    "fields of a schema": (
        lambda n: ", ".join(f"a{at} INT" for at in range(n)) + ", a0 INT",
        500,
        lambda text: schema_faults(parse_schema(text)),
    ),
    "fields of a struct in a schema": (
        lambda n: "s STRUCT<" + ", ".join(f"a{at}: INT" for at in range(n)) + ", a0: INT>",
        500,
        lambda text: schema_faults(parse_schema(text)),
    ),
    "a schema without a type": (lambda n: "`a``" * n, 8_000, parse_schema),
    "starting offsets of many topics": (lambda n: positions(n, 1), 700, read_positions),
    "starting offsets of many queues": (lambda n: positions(1, n), 2_000, read_positions),
    "a checkpoint of many topics": (lambda n: source_offset(n, 1), 700, SourceOffset.from_json),
    "a checkpoint of many queues": (lambda n: source_offset(1, n), 700, SourceOffset.from_json),
    "a manifest": (manifest, 500, decode_manifest),
    "a manifest in parts": (
        manifest_in_parts,
        500,
        lambda given: decode_manifest(given[0]).join_parts(given[1]),
    ),
    "batches of many queries that count": (
        lambda n: [(at, ManifestId(f"q{at}", "", 1)) for at in range(n)],
        2_000,
        CommitState().apply,
    ),
    "many writes of one batch that count": (
        lambda n: [(at, ManifestId("q", f"w{at}", 1)) for at in range(n)],
        1_000,
        CommitState().apply,
    ),
    "writes that count": (
        lambda n: [(at, ManifestId(None, f"w{at}", 0)) for at in range(n)],
        3_000,
        CommitState().apply,
    ),
    "a long value of a setting": (
        lambda n: {"brokerName": "x" * n, "listenPort": "1" * n},
        200_000,
        config_of,
    ),
    "the digits of a port": (lambda n: "localhost:" + "1" * n, 500_000, parse_address),
    "the digits of a delay level": (
        lambda n: record(f"DELAY\1{'1' * n}\2"),
        4_000,
        lambda data: [each.delay_level for each in decode_messages(data, "broker-a")],
    ),
}

CASES = {**BODIES, **RECORDS, **REQUESTS, **TEXTS}


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("name", spread(36, CASES))
def test_reading_takes_time_in_proportion_to_the_size(name):
    make, size, read = CASES[name]
    found = growth(make, size, read)
    assert found <= GROWTH * TOLERANCE, f"{found:.1f} times as long for {GROWTH} times as much"
