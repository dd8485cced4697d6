"""``rocketpoll bench`` counts only messages that were really sent, read or received."""

import signal
import subprocess
import sys

import pytest
from support.brokers.broker_kinds import wait_until

from rocketpoll import EmbeddedBroker

ROCKETPOLL = [sys.executable, "-m", "rocketpoll"]


def ends(cluster, topic):
    return sum(
        cluster.api.max_offset(cluster.address, cluster.queue(topic, each)) for each in (0, 1)
    )


@pytest.mark.parametrize("how", [(), ("--batch", "10"), ("--in-flight", "20")])
def test_bench_produce_counts_and_times_sends(run, cluster, how):
    topic = cluster.topic(queues=2)
    found = run("bench", "produce", topic, "--seconds", 0.1, *how, "-o", "json").json
    assert 0 < found["messages"] <= ends(cluster, topic)
    assert found["bytes_per_second"] == pytest.approx(100 * found["messages_per_second"], abs=51)
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]


def test_bench_produce_counts_sends_that_are_pending_at_the_end(run, cluster):
    topic = cluster.topic(queues=2)
    how = ("--seconds", 0.001, "--in-flight", 10_000)
    found = run("bench", "produce", topic, *how, "-o", "json").json
    assert 0 < found["messages"] == ends(cluster, topic)
    assert found["max_ms"] > 0


def test_bench_consume_counts_messages(run, cluster):
    topic = cluster.topic(queues=2)
    cluster.send(topic, *range(50), queues=2)
    assert run("bench", "consume", topic, "-o", "json").json["messages"] == 50


def test_bench_latency_times_arrivals(run, cluster):
    topic = cluster.topic(queues=2)
    found = run("bench", "latency", topic, "--seconds", 0.2, "--rate", 50, "-o", "json").json
    assert (found["sent"], found["arrived"]) == (10, 10)
    assert 0 < found["p50_ms"] <= found["max_ms"]


def test_bench_command_with_a_failing_send_ends_in_one_line(run):
    with EmbeddedBroker() as broker:
        broker.create_topic("orders")
        with broker.full_disk():
            ran = run("bench", "latency", "orders", "--namesrv", broker.address)
    assert (ran.code, ran.out) == (1, "")
    [line] = ran.err.splitlines()
    assert "disk is 100% full" in line


def test_ctrl_c_ends_the_bench_command_quietly(cluster):
    topic = cluster.topic(queues=1)
    command = [*ROCKETPOLL, "bench", "latency", topic, "--namesrv", cluster.name_server]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as timing:
        wait_until(
            "messages",
            lambda: cluster.api.max_offset(cluster.address, cluster.queue(topic)),
        )
        timing.send_signal(signal.SIGINT)
        assert timing.wait(20) == 130
        assert timing.stderr.read() == ""


def test_bench_refuses_contradicting_options(run, cluster):
    ran = run("bench", "produce", cluster.topic(), "--batch", 2, "--in-flight", 2)
    assert ran.code == 2
    assert "--in-flight and --batch exclude each other" in ran.err
