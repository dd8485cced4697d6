"""After an interrupt in the middle of a notebook cell, the next cell works."""

import queue
from contextlib import contextmanager

import pytest

from rmq_spark.cli.spark.spark_runtime import java_fault

manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")
pytestmark = pytest.mark.deep

CELL_SECONDS = 180
BEGIN = """
import os, sys, threading
os.environ["PYSPARK_PYTHON"] = sys.executable
import rocketpoll
from rocketpoll import Admin, EmbeddedBroker, LitePullConsumer

broker = EmbeddedBroker(own_process=OWN_PROCESS).start()
broker.create_topic("orders", queues=1)
admin = Admin(broker.address)


def say_when_held():
    "Print as soon as a pull of this cell waits at the broker."

    def look():
        while int(admin.broker_info(broker.address)["pullsHeld"]) == 0:
            pass
        print("held", flush=True)

    threading.Thread(target=look).start()
"""
POLLS = """
consumer = LitePullConsumer("billing", broker.address)
consumer.subscribe("orders")
consumer.start()
say_when_held()
consumer.poll(timeout_ms=600_000)
"""
POLLS_ON = """
broker.send("orders", "one")
print(consumer.poll(timeout_ms=30_000)[0].body, broker.read_table("orders").num_rows)
"""
STREAMS = """
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
)
query = (
    spark.readStream.format("rocketpoll")
    .options(namesrvAddr=broker.address, topic="orders", startingOffsets="earliest")
    .load()
    .writeStream.format("memory").queryName("orders")
    .start()
)
query.processAllAvailable()
say_when_held()
query.awaitTermination()
"""
STREAMS_ON = """
broker.send("orders", "one")
query.processAllAvailable()
print(query.isActive, spark.table("orders").count())
query.stop()
spark.stop()
"""
END = "broker.stop()"


class Kernel:
    """A Jupyter kernel that runs single cells."""

    def __init__(self, kernel, client):
        self._kernel = kernel
        self._client = client

    def run(self, source, *, interrupted_at=None):
        """Run a cell; return its output, and the name of the error that ended it."""
        asked, printed, error = self._client.execute(source), "", None
        while True:
            try:
                said = self._client.get_iopub_msg(timeout=CELL_SECONDS)
            except queue.Empty:
                pytest.fail(f"the cell has not ended; it has printed {printed}")
            if said["parent_header"].get("msg_id") != asked:
                continue
            kind, content = said["msg_type"], said["content"]
            if kind == "stream" and content["name"] == "stdout":
                printed += content["text"]
                if interrupted_at is not None and interrupted_at in printed:
                    self._kernel.interrupt_kernel()
                    interrupted_at = None
            elif kind == "error":
                error = content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                return printed, error


@contextmanager
def started():
    kernel, client = manager.start_new_kernel(kernel_name="python3")
    try:
        yield Kernel(kernel, client)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def interrupt(cell, then, *, own_process):
    with started() as kernel:
        begun = kernel.run(BEGIN.replace("OWN_PROCESS", str(own_process)))
        assert begun == ("", None)
        assert kernel.run(cell, interrupted_at="held")[1] == "KeyboardInterrupt"
        printed = kernel.run(then)
        assert kernel.run(END) == ("", None)
        return printed


@pytest.mark.parametrize("own_process", [False, True], ids=["in a thread", "in a process"])
def test_interrupted_long_poll_leaves_the_consumer_usable(own_process):
    assert interrupt(POLLS, POLLS_ON, own_process=own_process) == ("b'one' 1\n", None)


@pytest.mark.skipif(java_fault() is not None, reason="Spark needs Java")
@pytest.mark.parametrize("own_process", [False, True], ids=["in a thread", "in a process"])
def test_interrupted_stream_wait_leaves_the_query_running(own_process):
    assert interrupt(STREAMS, STREAMS_ON, own_process=own_process) == ("True 1\n", None)
