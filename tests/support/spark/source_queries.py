"""The parts of a source over an embedded broker, without Spark: options, queues, batches."""

from contextlib import contextmanager

from pyspark.sql import types
from support.suite.clocks import Clock

from rmq_spark.client.message import Message
from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.options.options import read_options
from rmq_spark.spark.plan.micro_batch_planner import MicroBatchPlanner
from rmq_spark.wire.message_queue import MessageQueue

BROKER = "broker-a"

_TYPES = {
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "timestamp": types.TimestampType(),
    "timestamp_ltz": types.TimestampType(),
    "smallint": types.ShortType(),
    "double": types.DoubleType(),
    "array<string>": types.ArrayType(types.StringType()),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
}


def schema_of(ddl):
    """Parse a schema without the JVM that Spark's own parser needs; return other
    schemas unchanged."""
    if isinstance(ddl, types.StructType):
        return ddl
    fields = [part.rsplit(" ", 1) for part in ddl.split(", ") if part]
    return types.StructType([types.StructField(name, _TYPES[type_]) for name, type_ in fields])


def options_for(broker, topic, **more):
    """Return a source's options; ``topic=None`` for other selections."""
    given = {"namesrvAddr": broker.address, "discoveryIntervalMs": "0", **more}
    return read_options(given if topic is None else {**given, "topic": topic})


@contextmanager
def queues_of(broker, topic, **more):
    """Return the queues of brokers as the source sees them."""
    options = options_for(broker, topic, **more)
    instance = instance_for(options.access)
    try:
        yield QueueClient(options, instance)
    finally:
        instance.shutdown()


@contextmanager
def query(broker, topic, clock=None, **more):
    """Return a query's batches, as after a start of Spark."""
    options = options_for(broker, topic, **more)
    instance = instance_for(options.access)
    try:
        yield MicroBatchPlanner(options, QueueClient(options, instance), clock or Clock())
    finally:
        instance.shutdown()


def queue_of(topic, number=0):
    """Return a queue of the embedded broker."""
    return MessageQueue(topic, BROKER, number)


def send(broker, topic, number, *bodies, **more):
    """Send messages to one queue, one after the other; return their positions."""
    with broker.producer() as producer:
        return [
            producer.send(
                Message(topic, body.encode(), **more), queue_of(topic, number)
            ).queue_offset
            for body in bodies
        ]


def offsets_in(source_offset):
    """Return the next offset of each queue of a query."""
    return {
        queue.queue_id: position.next_offset for queue, position in source_offset.positions.items()
    }
