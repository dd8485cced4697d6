"""The demo's sender counts stored messages, keeps its rate and reports its error."""

import subprocess
import sys
import time

import pytest

from rmq_spark.cli.demo.clients import DemoConsumer, DemoSender
from rmq_spark.cli.spark.spark_runtime import java_fault


@pytest.mark.parametrize("by_table", [True, False])
def test_demo_sender_counts_stored_messages_until_stopped(
    rocketpoll_broker, rocketpoll_topic, by_table
):
    with DemoSender(rocketpoll_broker.address, rocketpoll_topic, 10, by_table=by_table) as sender:
        sender.send(7)
        sender.start(10_000)
        rocketpoll_broker.wait_until_arrived(rocketpoll_topic, 100)
        sender.stop()
        messages = rocketpoll_broker.messages(rocketpoll_topic)
    assert sender.fault is None
    assert len(messages) == sender.sent
    assert {len(message.body) for message in messages} == {10}
    assert {message.tags for message in messages} == {"created", "paid", "sent"}
    assert {message.keys for message in messages} == {(f"order-{n}",) for n in range(sender.sent)}


def test_lowered_demo_sender_rate_holds_from_then_on(rocketpoll_broker, rocketpoll_topic):
    with DemoSender(rocketpoll_broker.address, rocketpoll_topic, 10, by_table=False) as sender:
        sender.start(10_000)
        rocketpoll_broker.wait_until_arrived(rocketpoll_topic, 100)
        sender.per_second = 0
        sender.stop()
        assert len(rocketpoll_broker.messages(rocketpoll_topic)) == sender.sent


@pytest.mark.parametrize("by_table", [True, False])
def test_demo_sender_reports_its_fault(by_table):
    with DemoSender("127.0.0.1:1", "T", 10, by_table=by_table) as sender:
        with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
            sender.send(1)
        sender.start(1_000)
        sender._thread.join(60)
        assert "127.0.0.1:1" in str(sender.fault)


# ---- the demo's Spark query reads every message that was sent


@pytest.mark.wide
@pytest.mark.skipif(java_fault() is not None, reason="Spark needs Java")
def test_demo_reads_every_message_that_it_sends():
    program = "import sys; from rmq_spark.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "demo", "--seconds", "2", "--rate", "2000"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "batch 0: " in done.stdout
    assert "every one of them once" in done.stdout


# ---- the demo's consumer reports its rows with their latency, and its error


def test_demo_consumer_reports_rows_with_latency(rocketpoll_broker, rocketpoll_topic):
    batches = []
    reader = DemoConsumer(rocketpoll_broker.address, rocketpoll_topic, batches.append)
    rocketpoll_broker.send(rocketpoll_topic, *("x" for _ in range(50)))
    until = time.monotonic() + 20
    while sum(batch.rows for batch in batches) < 50:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert reader.fault() is None
    reader.finish()
    reader.stop()
    assert sum(batch.rows for batch in batches) == 50
    assert all(-1 < batch.latency_p50 <= batch.latency_p95 < 20 for batch in batches)


def test_demo_consumer_reports_its_fault(rocketpoll_broker, rocketpoll_topic):
    told = []

    def fails(batch):
        told.append(batch)
        raise RuntimeError("nobody is to know")

    reader = DemoConsumer(rocketpoll_broker.address, rocketpoll_topic, fails)
    rocketpoll_broker.send(rocketpoll_topic, "x")
    until = time.monotonic() + 20
    while reader.fault() is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert reader.fault() == "nobody is to know"
    assert len(told) == 1
    reader.stop()
