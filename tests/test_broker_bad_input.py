"""Malformed requests to a whole broker are answered or the connection is closed; no other client is
affected."""

import asyncio
import os
import random
import zlib

import msgpack
import pytest
from support.brokers.in_process import on_broker, tell
from support.brokers.processes import BrokerProcess
from support.clients.remoting_clients import BrokerClients, pull_request, send_request

from rmq_spark.wire.codes import MessageSysFlag, RequestCode, ResponseCode, SerializeType
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import FRAME_BYTES_MAX

# Longer campaigns: ROCKETPOLL_FUZZ_REQUESTS=100000
REQUESTS = int(os.environ.get("ROCKETPOLL_FUZZ_REQUESTS", "2000"))
RSS_MAX = 256 << 20
HALVES = 15


def frame_of(header, serialize_type=0, body=b""):
    length = 4 + len(header) + len(body)
    word = serialize_type << 24 | len(header)
    return length.to_bytes(4, "big") + word.to_bytes(4, "big") + header + body


def json_with(ext_fields):
    return frame_of(b'{"code":11,"opaque":1,"extFields":' + ext_fields + b"}")


NESTED = 100_000
STRANGE = {
    "garbage": bytes(random.Random(1).randrange(256) for _ in range(4_000)).replace(b"\0", b"\xff"),
    "HTTP": b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100f8010000f40303") + bytes(240),
    "a length of 2 GB": b"\x7f\xff\xff\xff" + bytes(60),
    "a length of 352 MB": b"\x15\x03\x01\x00" + bytes(60),
    "a negative length": b"\x80\x00\x00\x00" + bytes(60),
    "a length of nothing": bytes(64),
    "one byte over the limit": (FRAME_BYTES_MAX - 3).to_bytes(4, "big") + bytes(60),
    "a header longer than its frame": b"\x00\x00\x00\x08\x00\xff\xff\xff" + bytes(4),
    "an unknown codec": frame_of(b"{}", 9),
    "no JSON": frame_of(b"{{{{"),
    "JSON that is no object": frame_of(b"[1,2,3]"),
    "JSON without a code": frame_of(b'{"opaque":1}'),
    "a code over 32 bits": frame_of(b'{"code":99999999999}'),
    "129 ext fields": json_with(b"{%s}" % b",".join(b'"k%d":"v"' % n for n in range(129))),
    "60,000 ext fields": json_with(b"{%s}" % b",".join(b'"%d":1' % n for n in range(20_000))),
    "deep JSON": json_with(b"[" * NESTED + b"]" * NESTED),
    "deep JSON that does not end": json_with(b'{"a":' * (NESTED // 3)),
    "JSON in an ext field": json_with(b'{"topic":{"a":1}}'),
    "text that is no UTF-8": json_with(b'{"topic":"\xff\xfe"}'),
    "deep MessagePack": frame_of(b"\x91" * NESTED + b"\xc0", 2),
    "MessagePack that promises much": frame_of(b"\xdd\x7f\xff\xff\xff", 2),
    "MessagePack of 129 fields": frame_of(
        msgpack.packb([11, 3, 1, 1, 0, None, {str(n): "v" for n in range(129)}]), 2
    ),
    "a binary header cut short": frame_of(b"\x00\x0b", 1),
    "a binary header whose remark is 2 GB": frame_of(
        bytes.fromhex("000b0c0199000000010000000000007fffffff")[:19] + b"\x7f\xff\xff\xff", 1
    ),
}


@pytest.mark.parametrize("code", [RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ])
@on_broker
async def test_deeply_nested_json_body_is_refused_before_parsing(broker, code):
    client = await broker.connect()
    client.send(RemotingCommand(code, body=b"[" * NESTED + b"]" * NESTED))
    answer = await client.receive()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "needed at most 32 levels" in answer.remark
    await client.put("a")


# ---- complete but invalid requests

TEXTS = [
    "",
    " ",
    "T",
    "G",
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "../../x",
    "%RETRY%G",
    "x" * 300,
    "\x01\x02",
    "🚀",
]
NUMBERS = [-(1 << 63), -(1 << 31), -1, 0, 1, 5, (1 << 31) - 1, (1 << 63) - 1, 1 << 64]
VALUES = [
    *TEXTS,
    *map(str, NUMBERS),
    "true",
    "false",
    "null",
    "1e5",
    "0x10",
    "1,2",
    "7F000001000026940000000000000000",
]
GROUPS = b'[{"groupName":"G"},{"groupName":null}]'
CLIENT = b'{"clientID":"c","producerDataSet":[{}],"consumerDataSet":%s}' % GROUPS
BODIES = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"{",
    b"1",
    CLIENT,
    b'{"table":{"a":{}}}',
    b"\xff" * 30,
    bytes(91),
    CLIENT[:40],
]


SHORT_MAX = 32_767
"""The largest code in RocketMQ's binary header."""


def strange_request(code, dice):
    """Return a request with this code and random values in some of its fields."""
    exchange = HEADERS.get(code)
    names = exchange.request.keys if exchange is not None and exchange.request is not None else ()
    likely = dice.choice([0.5, 0.9, 1.0])
    types = set(SerializeType) - ({SerializeType.ROCKETMQ} if code > SHORT_MAX else set())
    return RemotingCommand(
        code,
        opaque=5,
        ext_fields={name: dice.choice(VALUES) for name in names if dice.random() < likely},
        body=dice.choice(BODIES),
        serialize_type=dice.choice(sorted(types)),
    )


def test_random_requests_are_answered_with_rocketmq_codes_only(tmp_path, caplog):
    async def story(broker):
        dice = random.Random(REQUESTS)
        client = await broker.connect()
        await client.put(*range(3))
        await client.heartbeat("G", "T")
        codes = sorted(RequestCode)
        for number in range(REQUESTS):
            request = strange_request(codes[number % len(codes)], dice)
            client.send(request)
            while not (answer := await client.receive()).is_response:
                client.send(answer.respond(1, "no idea"))  # a response to a request of the broker
            assert answer.opaque == 5
            assert "internal error" not in (answer.remark or ""), request

    tell(story, tmp_path, suspendTimeoutMillsMin=1, suspendTimeoutMillsMax=1)
    assert not [record for record in caplog.records if record.exc_info]


# ---- a broker process has bounded memory for any input


def test_broker_under_attack_serves_others_in_bounded_memory(tmp_path):
    big = send_request(bytes(7 << 20)).encode()
    bomb = zlib.compress(bytes(100 << 20), 9)
    inflates = send_request(
        bomb, sys_flag=MessageSysFlag.COMPRESSED.value | MessageSysFlag.COMPRESSION_ZLIB.value
    )

    async def story(broker):
        async with BrokerClients(broker.port) as clients:
            good = await clients.connect()
            await good.put("before")
            for data in STRANGE.values():
                bad = await clients.connect()
                bad.send(data)
                assert await bad.closed() == b""
            for _ in range(HALVES):  # 105 MB of incomplete requests
                half = await clients.connect()
                half.send(big[:-1])
            for _ in range(HALVES):  # 240 MB announced, a byte of each sent
                huge = await clients.connect()
                huge.send((FRAME_BYTES_MAX - 4).to_bytes(4, "big") + b"\x00\x00\x00\x20" + b"{")
            readless = await clients.connect(receive_buffer=4_096)
            readless.send(b"".join(pull_request(0).encode() for _ in range(20_000)))
            assert broker.rss_bytes() < RSS_MAX
            for number in range(100):
                found = await good.pull(0)
                assert found.bodies[0] == "before"
                answer = await good.call(send_request(number))
                assert answer.code in {0, 2}  # stored, or busy
        async with BrokerClients(broker.port) as clients:
            after = await clients.connect()
            while (await after.call(send_request("after"))).code == 2:  # noqa: ASYNC110  # retries like a client
                await asyncio.sleep(0.01)
            for _ in range(20):
                assert (await after.call(inflates)).code == 0
            await after.pull(0, count=1)
            assert broker.rss_bytes() < RSS_MAX

    with BrokerProcess(
        tmp_path, mappedFileSizeCommitLog=16 << 20, maxMessageSize=1 << 20
    ) as broker:
        asyncio.run(story(broker))
        assert broker.stop() == 0
        # one line each, and none for a client that disconnects
        assert len(broker.log()) <= len(STRANGE) + 2 * HALVES + 1
