"""Network trouble between a query and one of two brokers: a dead host, a forgetful NAT, a pause.

The brokers are ours and RocketMQ's.
"""

import json
import threading
import time
from types import SimpleNamespace

import pytest
from support.servers.middleboxes import Nat
from support.spark.broker_pairs import B, warnings_of
from support.spark.streaming_engine import assert_read

from rmq_spark.client.concurrency import retry_timer
from rmq_spark.client.transport.remoting_client import RemotingClient
from rmq_spark.spark.brokers import fan_out
from rmq_spark.spark.read import partition_reader


def by_way_of(member, box):
    """Return the option that leads the query, but no sender, to a broker through a middlebox."""
    return {"brokerAddresses": json.dumps({member.name: box.address})}


def test_running_query_waits_for_a_host_that_went_down_silently(pair, caplog):
    with Nat(pair.b.address) as host:
        query, bodies = pair.read_before(requestTimeoutMs=300, **by_way_of(pair.b, host))
        host.go_dark()
        bodies += pair.send(pair.b, 2) + pair.send(pair.a, 2)
        planned = []
        asked = threading.Thread(target=lambda: planned.append(query.trigger()))
        asked.start()
        asked.join(2)
        assert not planned
        host.resume_listening()
        asked.join()
        query.run()
        assert_read(query, bodies)
    assert len(warnings_of(caplog, f"requests to broker {B} failed, retrying")) == 1


@pytest.mark.wide
def test_nat_forgetting_idle_connections_fails_no_batch(pair, monkeypatch):
    with Nat(pair.a.address) as nat:
        query, bodies = pair.read_before(requestTimeoutMs=300, **by_way_of(pair.a, nat))
        for _ in range(4):
            nat.forget()
            monkeypatch.setattr(
                partition_reader, "_addresses", {}
            )  # Spark has started another Python worker
            bodies += pair.send(pair.a, 1)
            assert query.trigger()
        assert_read(query, bodies)


def test_query_waits_for_each_of_several_distant_outages(pair, monkeypatch):
    """The outages are further apart than the retry timeout, with no request in between."""
    query, bodies = pair.read_before(requestTimeoutMs=200, retryTimeoutMs=10_000)
    ahead = [0.0]
    ours = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0], sleep=time.sleep)
    for module in (fan_out, retry_timer):
        monkeypatch.setattr(module, "time", ours)
    for number in range(2):
        pair.b.pause()
        back = threading.Timer(0.6, pair.b.resume)
        back.start()
        query.trigger()
        back.join()
        ahead[0] += 3_600
        bodies += pair.send(pair.b, 2, f"after hiccup {number}")
    query.run()
    assert_read(query, bodies)


@pytest.mark.wide
def test_broker_that_was_skipped_is_redialed_in_background(pair, monkeypatch):
    """Otherwise a query would wait an hour for it."""
    query, bodies = pair.read_before(requestTimeoutMs=300, onBrokerAway="skip")
    pair.b.pause()
    bodies += pair.send(pair.a, 2)
    query.run()
    monkeypatch.setattr(fan_out, "CONNECT_TIMEOUT_MS", 3_600_000)
    may_connect, agreement = threading.Event(), RemotingClient.agreement

    def held(connections, address):
        if address == pair.b.address:
            assert may_connect.wait(60)
        return agreement(connections, address)

    monkeypatch.setattr(RemotingClient, "agreement", held)
    for _ in range(5):
        bodies += pair.send(pair.a, 1)
        assert query.trigger()
    pair.b.resume()
    may_connect.set()
    bodies += pair.send(pair.b, 2)
    while pair.read_of(query, pair.b) < 6:
        query.trigger()
    query.run()
    assert_read(query, bodies)
