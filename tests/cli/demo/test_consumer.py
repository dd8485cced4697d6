"""The demo's consumer reports its rows with their latency, and its fault."""

import time

from rmq_spark.cli.demo.clients import DemoConsumer


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
