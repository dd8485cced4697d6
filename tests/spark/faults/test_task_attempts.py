"""Tasks that run twice produce the same rows."""

import os
import signal

import pytest
from support.spark.driver_processes import Query, wait_until
from support.spark.streaming_engine import send


@pytest.fixture
def query(rocketpoll_broker, rocketpoll_topic, tmp_path):
    return Query(
        tmp_path / "query",
        namesrvAddr=rocketpoll_broker.address,
        subscribe=rocketpoll_topic,
        startingOffsets="earliest",
        minPartitions=8,
    )


def assert_all_once(query, sent):
    wait_until(lambda: query.logged("commits") == [0], what="the batch")
    assert sorted(body for *_, body in query.rows()) == sorted(sent)
    assert query.differing() == []


def test_killed_python_worker_task_is_repeated_with_all_rows_once(
    driver, query, rocketpoll_broker, rocketpoll_topic
):
    """`local[2,4]` runs a task up to four times."""
    sent = send(rocketpoll_broker, rocketpoll_topic, 80)
    query.hold("straggler")
    driver.start(query)
    os.kill(query.reached("straggler"), signal.SIGKILL)
    assert_all_once(query, sent)
    assert driver.stop() is None
