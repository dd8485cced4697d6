"""Rows about messages: sends, batches, chunks, pulls of all kinds, and lookups of messages."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from benchmarks.gaps.asked import Scale, ask, batch, command, pull, send, send_header
from benchmarks.gaps.measured import Client, MeasuredBroker
from benchmarks.gaps.operators import BROKER
from benchmarks.gaps.row import Row, row_of, rows_of
from rmq_spark.wire.bodies.pop import (
    BatchAck,
    BatchAckMessageRequestBody,
    SetMessageRequestModeRequestBody,
)
from rmq_spark.wire.chunk.sized_chunk import encode_sizes
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import AppendChunkRequestHeader
from rmq_spark.wire.message.message_batch import BatchedMessage, encode_batch
from rmq_spark.wire.message.message_id import RecallHandle, encode_offset_message_id
from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.remoting.command import RemotingCommand

_LONG = " ".join(f"k{number}" for number in range(5_000))
_DEAR = " AND ".join(f"p{number} IS NULL" for number in range(60))
_MANY_PROPERTIES = {f"p{number}": "x" for number in range(1_000, 4_000)}


def message_rows(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    """Fill some queues, and read them."""
    client.connection.extensions = frozenset(Extension)
    yield from _of_sends(broker, client, scale)
    yield from _of_pulls(broker, client, scale)
    yield from _of_looks(broker, client, scale)
    yield from _of_pops(broker, client, scale)


def _of_sends(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    for start in range(0, scale.messages, 100):
        broker.send(client, [send("filled", number) for number in range(start, start + 100)])
    singles = [send("singles", number) for number in range(10 * scale.requests)]
    broker.send(client, singles[:1])
    name = f"{len(singles):,} sends at once"
    gap = broker.usual_turn(scale.rounds, client, singles)
    yield row_of(name, gap, RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)
    large = [send("singles", 0, size=scale.message_bytes)] * 3
    name = f"{len(large)} messages of {scale.message_bytes:,} bytes"
    gap = broker.usual_turn(scale.rounds, client, large)
    yield row_of(name, gap, RequestCode.SEND_MESSAGE)
    many_keys = [send("singles", 0, KEYS=_LONG)] * (scale.requests // 4)
    name = f"{len(many_keys)} messages of 5,000 keys"
    gap = broker.usual_turn(scale.rounds, client, many_keys)
    yield row_of(name, gap, RequestCode.SEND_MESSAGE)
    yield row_of(
        f"{len(singles):,} sends that wait for their topic",
        broker.longest_turn(client, [send("new", number) for number in range(len(singles))]),
        RequestCode.SEND_MESSAGE,
    )
    for variant, message in {
        "of one byte": BatchedMessage(b"x"),
        "with a key": BatchedMessage(b"x", encode_properties({"KEYS": "k"})),
    }.items():
        count = scale.batch if not message.properties_text else scale.batch // 2
        request = batch(f"batches-{len(variant)}", encode_batch([message] * count))
        gap = broker.usual_turn(scale.rounds, client, [request])
        yield row_of(
            f"a batch of {count:,} messages {variant}", gap, RequestCode.SEND_BATCH_MESSAGE
        )
    for size, count in ((1, scale.chunk), (scale.message_bytes // 4, 12)):
        request = _chunk(count, size)
        broker.send(client, [request])
        gap = broker.usual_turn(scale.rounds, client, [request])
        yield row_of(
            f"a chunk of {count:,} messages of {size:,} bytes", gap, RequestCode.APPEND_CHUNK
        )


def _chunk(count: int, size: int) -> RemotingCommand:
    record = encode_record(
        StoredMessage(
            topic="chunks", body=bytes(size), properties_text=encode_properties({"KEYS": "k"})
        )
    )
    header = AppendChunkRequestHeader("P", "chunks", 0, "TBW102", 1)
    sizes = np.full(count, len(record), np.int32)
    return command(RequestCode.APPEND_CHUNK, header, encode_sizes(sizes) + record * count)


def _of_pulls(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    for _ in range(scale.messages // 50):
        broker.send(client, [_send_of_many_properties()])
    sql = "a = 'nothing' AND b IS NULL AND c IS NULL"
    for topic, expression in (("filled", sql), ("filled", _DEAR), ("wordy", _DEAR)):
        request = pull(topic, 0, subscription=expression)
        broker.send(client, [request])  # whose tools are loaded here
        requests = [request] * scale.requests
        gap = broker.usual_turn(scale.rounds, client, tuple(requests))
        name = f"{scale.requests} pulls by SQL92 of {len(expression)} characters from {topic}"
        yield row_of(name, gap, RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
        bulk = pull(topic, 0, code=RequestCode.PULL_CHUNK, subscription=expression, count=1_000_000)
        broker.send(client, [bulk])
        gap = broker.usual_turn(scale.rounds, client, [bulk])
        yield row_of(f"a bulk pull by the same from {topic}", gap, RequestCode.PULL_CHUNK)
    for topic in ("filled", "batches-11", "chunks"):
        bulk = pull(topic, 0, code=RequestCode.PULL_CHUNK, count=1_000_000)
        broker.send(client, [bulk])
        gap = broker.usual_turn(scale.rounds, client, [bulk])
        yield row_of(f"a bulk pull of all of {topic}", gap, RequestCode.PULL_CHUNK)
        places = bulk._replace(code=RequestCode.PULL_PLACES)
        gap = broker.usual_turn(scale.rounds, client, [places])
        yield row_of(f"the places of all of {topic}", gap, RequestCode.PULL_PLACES)


def _in_an_hour_ms() -> int:
    return (int(time.time()) + 3_600) * 1_000


def _send_of_many_properties() -> RemotingCommand:
    header = send_header("wordy", 0, encode_properties(_MANY_PROPERTIES))
    return command(RequestCode.SEND_MESSAGE_V2, header, b"x")


def _of_pops(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    of_group = {"topic": "filled", "consumerGroup": "G"}
    times = {"pollTime": 0, "bornTime": 0}
    pops = {"queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000, "initMode": 0}
    receipt = {"queueId": 0, "offset": 0, "extraInfo": f"0 1 60000 0 0 {BROKER} 0 0"}
    acks = tuple(
        BatchAck(consumer_group="G", topic="filled", revive_queue_id=number % 8, bit_set="/////w==")
        for number in range(scale.requests)
    )
    mode = SetMessageRequestModeRequestBody(topic="filled", consumer_group="G")
    sql = {"exp": _DEAR, "expType": "SQL92"}
    requests = {
        "a pop of 32 messages": ask(RequestCode.POP_MESSAGE, **of_group, **times, **pops),
        "a pop by an expression": ask(RequestCode.POP_MESSAGE, **of_group, **times, **pops, **sql),
        "a message acknowledged": ask(RequestCode.ACK_MESSAGE, **of_group, **receipt),
        f"{len(acks)} check points acknowledged": ask(
            RequestCode.BATCH_ACK_MESSAGE, BatchAckMessageRequestBody(acks=acks)
        ),
        "another invisible time": ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **of_group, **receipt, invisibleTime=60_000
        ),
        "a question for messages to pop": ask(
            RequestCode.NOTIFICATION, **of_group, **times, queueId=-1
        ),
        "a look at the next messages to pop": ask(
            RequestCode.PEEK_MESSAGE, **of_group, queueId=-1, maxMsgNums=32
        ),
        "the number of held pops": ask(RequestCode.POLLING_INFO, **of_group, queueId=-1),
        "the request mode of a group": ask(RequestCode.SET_MESSAGE_REQUEST_MODE, mode),
    }
    yield from rows_of(broker, client, requests, scale.rounds)


def _of_looks(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    query = ask(
        RequestCode.QUERY_MESSAGE,
        topic="filled",
        key="k5",
        maxNum=64,
        beginTimestamp=0,
        endTimestamp=1 << 62,
    )
    count = 4 * scale.requests
    gap = broker.usual_turn(scale.rounds, client, [query] * count)
    yield row_of(f"{count} queries by key", gap, RequestCode.QUERY_MESSAGE)
    missing = ask(
        RequestCode.QUERY_MESSAGE,
        topic="batches-10",
        key="k",
        maxNum=64,
        beginTimestamp=0,
        endTimestamp=1,
    )
    fields = {"topic": "filled", "queueId": 0, "index": 0, "count": 256, "consumerGroup": "G"}
    broker.send(
        client, [send("large", number, size=scale.message_bytes // 100) for number in range(200)]
    )
    tail = broker.controller.store.state().written_offset
    broker.send(client, [send("large", 0, size=scale.message_bytes)])
    host = broker.controller.advertised_host(client.connection)
    message_id = encode_offset_message_id(host, tail)
    requests = {
        "a query that passes over all of a key": missing,
        "256 entries of a queue": ask(RequestCode.QUERY_CONSUME_QUEUE, **fields),
        "entries of a queue of large messages": ask(
            RequestCode.QUERY_CONSUME_QUEUE, **{**fields, "topic": "large"}
        ),
        "a message of the largest by its place": ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=tail),
        "the largest message given back": ask(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            group="G",
            offset=tail,
            delayLevel=0,
            originMsgId=message_id,
        ),
        "a member is asked to consume the largest": ask(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, consumerGroup="G", clientId="c", msgId=message_id
        ),
        "a recall": ask(
            RequestCode.RECALL_MESSAGE,
            topic="filled",
            recallHandle=RecallHandle("filled", "broker-a", _in_an_hour_ms(), "x").encode(),
        ),
        "a reply to nobody": send("filled", 0, REPLY_TO_CLIENT="c")._replace(
            code=RequestCode.SEND_REPLY_MESSAGE_V2
        ),
    }
    yield from rows_of(broker, client, requests, scale.rounds)
    yield from _of_transactions(broker, client, scale)
    reply = send("singles", 0)._replace(code=RequestCode.SEND_REPLY_MESSAGE)
    gap = broker.longest_turn(client, [reply])
    yield row_of("a reply whose header is none", gap, RequestCode.SEND_REPLY_MESSAGE)


def _of_transactions(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    half = send("filled", 0, size=scale.message_bytes, TRAN_MSG="true", PGROUP="P")
    broker.send(client, [half])  # which creates the topics of transactions
    place = broker.controller.store.state().written_offset
    broker.send(client, [half])
    host = broker.controller.advertised_host(client.connection)
    end = {"producerGroup": "P", "tranStateTableOffset": 1, "commitLogOffset": place, "msgId": "m"}
    requests = {
        "a commit of the largest message": ask(
            RequestCode.END_TRANSACTION, commitOrRollback=8, **end
        ),
        "the largest half message is resumed": ask(
            RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=encode_offset_message_id(host, place)
        ),
    }
    yield from rows_of(broker, client, requests, scale.rounds)
