"""Queries started from other threads of a program work as the documentation says."""

import threading

import pytest

from rocketpoll import EmbeddedBroker

pytestmark = pytest.mark.deep


def in_a_thread(work):
    """Run work in a new thread; return its result or raise its error."""
    outcomes = []

    def run():
        try:
            outcomes.append(work())
        except Exception as error:  # the test checks it
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcomes[0]


@pytest.fixture
def copy(spark, tmp_path):
    """Return a function that copies a topic with a query, and returns the number of copied
    messages."""
    with EmbeddedBroker() as broker:
        for topic in ("A", "B"):
            broker.create_topic(topic, queues=1)
        broker.send("A", "one", "two")

        def copy():
            given = {"namesrvAddr": broker.address, "startingOffsets": "earliest"}
            found = spark.readStream.format("rocketpoll").options(**given, topic="A").load()
            writer = found.select("body").writeStream.format("rocketpoll")
            writer = writer.option("namesrvAddr", broker.address).option("topic", "B")
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            writer.trigger(availableNow=True).start().awaitTermination()
            return len(broker.messages("B"))

        yield copy


def test_query_in_a_thread_with_a_known_session_starts(spark, copy):
    def known_and_copied():
        spark.createDataFrame([], "id INT")
        return copy()

    assert in_a_thread(known_and_copied) == 2


def test_query_in_a_thread_without_a_session_finds_no_source(copy):
    assert "DATA_SOURCE_NOT_FOUND" in str(in_a_thread(copy))
