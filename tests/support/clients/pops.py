"""Pops, acknowledgements and changes as a client sends them, over `BrokerClient`."""

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.pop import BatchAck, BatchAckMessageRequestBody
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.members import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
)
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.record import decode_records
from rmq_spark.wire.pop import (
    POP_CK,
    PopReceipt,
    decode_offsets,
    encode_bits,
    real_topic,
    retry_mark,
)


class Popped:
    """A popped message: its receipt handle, and the topic that stores it."""

    def __init__(self, message, receipt, group):
        self.message = message
        self.receipt = receipt
        self.group = group
        self.topic = real_topic(message.topic, group, receipt.retry)
        self.times = message.reconsume_times

    @property
    def text(self):
        return self.message.body.decode()

    def __repr__(self):
        return f"{self.message.body[:20]!r} ({self.receipt.encode()})"


async def pop(client, topic="T", group="G", **fields):
    """Pop messages of a topic; return an empty list after the poll time."""
    response = await client.ask(
        RequestCode.POP_MESSAGE, ext_fields=pop_fields(topic, group, **fields)
    )
    return popped_of(response, group)


def pop_fields(topic="T", group="G", **fields):
    header = {
        "queue_id": -1,
        "max_msg_nums": 32,
        "invisible_time": 10_000,
        "poll_time": 0,
        "born_time": 0,
        "init_mode": 0,
        **fields,
    }
    return HEADERS[RequestCode.POP_MESSAGE].request.encode(
        PopMessageRequestHeader(consumer_group=group, topic=topic, **header)
    )


def popped_of(response, group="G"):
    """Return the messages in the response to a pop, with receipt handles as Java's client builds
    them."""
    if response.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL):
        return []
    assert response.code == ResponseCode.SUCCESS, (response.code, response.remark)
    header = HEADERS[RequestCode.POP_MESSAGE].response.decode(response.ext_fields)
    starts = decode_offsets(header.start_offset_info)
    offsets = decode_offsets(header.msg_offset_info)
    found = []
    for message in decode_records(response.body):
        text = message.properties.get(POP_CK)
        if text is not None:
            receipt = PopReceipt.decode(text)
        else:
            key = retry_mark(message.topic), str(message.queue_id)
            assert str(message.queue_offset) in offsets[key].split(",")
            receipt = PopReceipt(
                int(starts[key]),
                header.pop_time,
                header.invisible_time,
                header.revive_qid,
                key[0],
                "broker-a",
                message.queue_id,
                message.queue_offset,
            )
        found.append(Popped(message, receipt, group))
    return found


async def ack(client, popped):
    """Acknowledge a message; return the code of the response."""
    fields = HEADERS[RequestCode.ACK_MESSAGE].request.encode(
        AckMessageRequestHeader(
            popped.group,
            popped.topic,
            popped.receipt.queue_id,
            popped.receipt.encode(),
            popped.receipt.queue_offset,
        )
    )
    return (await client.ask(RequestCode.ACK_MESSAGE, ext_fields=fields)).code


async def ack_all(client, messages):
    """Acknowledge messages of one or several pops in one request."""
    acks = [
        BatchAck(
            consumer_group=each.group,
            topic=each.message.topic,
            retry=each.receipt.retry,
            start_offset=each.receipt.start_offset,
            queue_id=each.receipt.queue_id,
            revive_queue_id=each.receipt.revive_queue_id,
            pop_time=each.receipt.pop_time,
            invisible_time=each.receipt.invisible_time,
            bit_set=encode_bits([each.receipt.queue_offset - each.receipt.start_offset]),
        )
        for each in messages
    ]
    body = encode_body(BatchAckMessageRequestBody(broker_name="broker-a", acks=tuple(acks)))
    return (await client.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)).code


async def change(client, popped, invisible_ms, **more):
    """Change a message's invisible time, and replace its receipt handle by the new one."""
    fields = HEADERS[RequestCode.CHANGE_MESSAGE_INVISIBLETIME].request.encode(
        ChangeInvisibleTimeRequestHeader(
            popped.group,
            popped.topic,
            popped.receipt.queue_id,
            popped.receipt.encode(),
            popped.receipt.queue_offset,
            invisible_ms,
            **more,
        )
    )
    response = await client.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext_fields=fields)
    if response.code == ResponseCode.SUCCESS and response.ext_fields:
        changed = HEADERS[RequestCode.CHANGE_MESSAGE_INVISIBLETIME].response.decode(
            response.ext_fields
        )
        popped.receipt = popped.receipt._replace(
            start_offset=popped.receipt.queue_offset
            if not popped.receipt.is_in_order
            else popped.receipt.start_offset,
            pop_time=changed.pop_time,
            invisible_time=changed.invisible_time,
            revive_queue_id=changed.revive_qid,
        )
    return response.code
