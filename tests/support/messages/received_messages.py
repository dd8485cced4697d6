"""Messages as consumers receive them, for tests that have no broker."""

from rmq_spark.client.message import MessageExt
from rmq_spark.wire.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)


def received(queue_offset, body=b"body", tags=None, queue=QUEUE, reconsume_times=0, **properties):
    """Return one received message."""
    return MessageExt(
        topic=queue.topic,
        body=body,
        properties={**({"TAGS": tags} if tags else {}), **properties},
        queue=queue,
        queue_offset=queue_offset,
        message_id=f"id-{queue_offset}",
        offset_message_id="",
        commit_log_offset=queue_offset * 100,
        born_timestamp=1,
        born_host="127.0.0.1:1",
        store_timestamp=2,
        store_host="127.0.0.1:2",
        reconsume_times=reconsume_times,
        flag=0,
        sys_flag=0,
        prepared_transaction_offset=0,
    )


def several(*queue_offsets, **more):
    """Return several received messages of a queue."""
    return tuple(received(each, **more) for each in queue_offsets)
