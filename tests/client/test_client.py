"""Imports of the client stay small, and messages can be pickled."""

import pickle

from support.programs.python_programs import ROOT, python_program

from rocketpoll import Message

SELDOM_NEEDED = {
    "numpy",
    "pyarrow",
    "ssl",
    "asyncio",
    "pathlib",
    "hashlib",
    "lz4",
    "backports.zstd",
    "compression.zstd",
    "rmq_spark.client.admin.admin",
    "rmq_spark.client.api.admin_api",
    "rmq_spark.client.producer.arrow_sender",
    "rmq_spark.client.reading.bulk_pull",
    "rmq_spark.client.transport.tls.settings",
    "rmq_spark.client.consumer.offsets.local_offset_store",
    "rmq_spark.wire.signature",
    "rmq_spark.wire.chunk",
    "rmq_spark.wire.bodies.operators",
    "rmq_spark.wire.bodies.configs",
    "rmq_spark.wire.headers.operators",
}


def test_producer_and_consumer_import_nothing_optional():
    program = f"""
        import sys
        before = set(sys.modules)  # what this environment's own start-up has loaded
        from rocketpoll import LitePullConsumer, Producer, PushConsumer
        print(*sorted({SELDOM_NEEDED!r} & (set(sys.modules) - before)))
    """
    done = python_program(program, cwd=ROOT)
    assert (done.stdout.split(), done.stderr) == ([], "")


def test_consumer_of_single_messages_does_not_import_numpy(rocketpoll_broker, rocketpoll_topic):
    rocketpoll_broker.send(rocketpoll_topic, *map(str, range(100)))
    program = f"""
        import sys
        before = set(sys.modules)
        from rocketpoll import LitePullConsumer
        with LitePullConsumer("G", "{rocketpoll_broker.address}") as consumer:
            consumer.assign(consumer.fetch_message_queues("{rocketpoll_topic}"))
            for queue in consumer.assignment():
                consumer.seek_to_begin(queue)
            found = set()
            while len(found) < 100:
                found.update(message.body for message in consumer.poll())
        print(*sorted({{"numpy", "pyarrow"}} & (set(sys.modules) - before)))
    """
    done = python_program(program, cwd=ROOT)
    assert (done.stdout.split(), done.stderr) == ([], "")


def test_message_can_be_pickled():
    message = Message("T", b"x", "tag", properties={"a": "b"})
    assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301  # the test's own data
