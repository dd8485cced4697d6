"""Two brokers behind a name server: one is away, renamed, drained, or cut off without a word."""

import threading
import time
from types import SimpleNamespace

import pytest
from middle_boxes import BlackHole, Nat
from name_servers import JoiningNameServer
from spark_engine import Crashed, Engine, assert_read, send

from rmq_spark.client.connections.connection import Connection
from rmq_spark.client.connections.connections import Connections
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.spark import asking, tasks
from rmq_spark.spark.errors import BrokersAway, DataLoss
from rmq_spark.spark.lag import lag_between
from rmq_spark.spark.source_offset import SourceOffset, sizes_in
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import EmbeddedBroker

A, B = "broker-a", "broker-b"


@pytest.fixture
def brokers(tmp_path):
    """The second can be killed."""
    with (
        EmbeddedBroker(tmp_path / A, brokerName=A) as a,
        EmbeddedBroker(tmp_path / B, own_process=True, brokerName=B) as b,
    ):
        for broker in (a, b):
            broker.create_topic("T", 2)
        yield a, b


@pytest.fixture
def names(brokers):
    with JoiningNameServer(*brokers) as names:
        yield names


def query_of(names, **options):
    return Engine(names.address, **{"subscribe": "T", "retryTimeoutMs": 60_000, **options})


def read_before(names, brokers, count=4, **options):
    """A running query that has read some messages of both brokers, and these."""
    query = query_of(names, **options)
    bodies = [body for broker in brokers for body in send(broker, "T", count)]
    query.start()
    query.run()
    return query, bodies


def warnings_of(caplog, words):
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


def read_of(query, broker_name):
    """How far a query is in a broker's queues."""
    return sum(query.end()["offsets"]["T"].get(broker_name, {}).values())


# ---- a broker is away


def test_no_batch_ends_behind_a_broker_that_is_away(names, brokers, caplog):
    """What it has acknowledged would come late behind what the other has."""
    a, b = brokers
    query, bodies = read_before(names, brokers)
    bodies += send(b, "T", 2)
    b.kill()
    bodies += send(a, "T", 2)
    planned = []
    asked = threading.Thread(target=lambda: planned.append(query.trigger()))
    asked.start()
    asked.join(2)
    assert not planned
    b.restart()
    asked.join()
    query.run()
    assert_read(query, bodies)
    assert len(warnings_of(caplog, f"waiting for broker {B}")) == 1


def test_a_broker_that_stays_away_ends_the_query_and_the_error_names_it(names, brokers):
    a, b = brokers
    query, bodies = read_before(names, brokers, retryTimeoutMs=300)
    b.kill()
    bodies += send(a, "T", 2)
    with pytest.raises(
        BrokersAway, match=rf"broker {B} has not answered for 300 ms \(option retryTimeoutMs\)"
    ):
        query.run()
    b.restart()
    query.start()
    query.run()
    assert_read(query, bodies)


def test_a_query_may_go_on_without_it_and_its_lag_stays_in_sight(names, brokers, caplog):
    a, b = brokers
    query, bodies = read_before(names, brokers, onBrokerAway="skip", retryTimeoutMs=300)
    bodies += send(b, "T", 2)
    query.crash_at = "latest-done"  # the broker has been looked at since
    with pytest.raises(Crashed):
        query.trigger()
    query.options["maxOffsetsPerTrigger"] = "1"
    query.start()
    query.trigger()
    b.kill()
    reached = read_of(query, B)
    for _ in range(3):
        bodies += send(a, "T", 2)
        query.run()
    assert read_of(query, B) == reached
    latest = query.report()
    lag = lag_between(
        SourceOffset.from_json(query.end()), SourceOffset.from_json(latest), sizes_in(latest)
    )
    assert sum(each.messages for each in lag if each.queue.broker_name == B) == 1
    assert len(warnings_of(caplog, f"going on without broker {B}")) == 1
    b.restart()
    while read_of(query, B) == reached:
        query.trigger()
    query.run()
    assert_read(query, bodies)


def test_a_planned_batch_waits_for_its_broker_whatever_the_option_says(names, brokers):
    _, b = brokers
    query, bodies = read_before(names, brokers, onBrokerAway="skip")
    bodies += send(b, "T", 4)
    query.crash_at = "partitions"
    with pytest.raises(Crashed):
        query.trigger()
    b.kill()
    query.start()
    restarted = threading.Timer(0.5, b.restart)
    restarted.start()
    query.run()
    restarted.join()
    assert_read(query, bodies)


# ---- a broker is no more


def test_a_broker_that_no_name_server_knows_any_more_is_a_loss(names, brokers):
    a, b = brokers
    query, _ = read_before(names, brokers, retryTimeoutMs=300)
    query.stop()
    names.forget(b)
    b.kill()
    send(a, "T", 2)
    query.start(available_now=True)
    with pytest.raises(DataLoss) as raised:
        query.run()
    said = str(raised.value)
    assert said.startswith(
        f"no name server knows broker {B} any more; they know {A}. If it has another name now"
    )
    assert f"queue 0 of T on {B} to offset 2, queue 1 of T on {B} to offset 2" in said


def test_or_the_query_goes_on_without_it_for_good_and_asks_for_it_no_more(names, brokers, caplog):
    a, b = brokers
    query, bodies = read_before(names, brokers, retryTimeoutMs=300, failOnDataLoss="false")
    query.stop()
    names.forget(b)
    b.kill()
    for _ in range(2):  # the second run knows
        bodies += send(a, "T", 2)
        query.start(available_now=True)
        query.run()
        query.stop()
    assert_read(query, bodies)
    assert query.end()["gone"] == [B]
    assert len(warnings_of(caplog, "messages are gone")) == 1
    query.options["failOnDataLoss"] = "true"  # it has been told
    query.start()
    query.run()
    asked = names.asked.get(RequestCode.GET_BROKER_CLUSTER_INFO, 0)
    query.run()
    assert names.asked.get(RequestCode.GET_BROKER_CLUSTER_INFO, 0) == asked


def test_should_it_come_back_all_the_same_it_is_read_from_where_it_was(names, brokers):
    a, b = brokers
    query, bodies = read_before(names, brokers, retryTimeoutMs=300, failOnDataLoss="false")
    bodies += send(b, "T", 2)
    names.forget(b)
    b.kill()
    bodies += send(a, "T", 2)
    query.run()
    assert query.end()["gone"] == [B]
    b.restart()
    names.brokers.append(b)
    query.run()
    assert "gone" not in query.end()
    assert_read(query, bodies)


@pytest.fixture
def renamed(tmp_path):
    """A query that has read everything of a broker, which has another name since,
    and a message more."""
    query, bodies = None, []
    for name in (A, "prod-1"):
        with EmbeddedBroker(tmp_path / "store", brokerName=name) as broker:
            if query is None:
                broker.create_topic("T", 2)
                query = Engine(broker.address, subscribe="T", retryTimeoutMs=300)
                bodies += send(broker, "T", 100)
                query.start()
                query.run()
                query.stop()
                continue
            query.options["namesrvAddr"] = broker.address
            yield broker, query, bodies + send(broker, "T", 2)


def test_a_broker_that_was_renamed_is_not_read_once_more_from_its_first_message(renamed):
    _, query, _ = renamed
    query.start()
    with pytest.raises(
        DataLoss, match=r'say so in option brokerNames, as \{"broker-a": "new name"\}'
    ):
        query.run()
    assert len(query.rows()) == 100


def test_told_its_new_name_the_query_goes_on_where_it_was(renamed):
    broker, query, bodies = renamed
    query.options["brokerNames"] = f'{{"{A}": "prod-1"}}'
    query.start()
    query.run()
    query.stop()
    assert_read(query, bodies)
    assert list(query.end()["offsets"]["T"]) == ["prod-1"]
    bodies += send(broker, "T", 2)
    for given in (query.options["brokerNames"], None):  # it may stay, and need not
        if given is None:
            del query.options["brokerNames"]
        query.start()
        query.run()
        query.stop()
    assert_read(query, bodies)


def test_a_batch_that_was_planned_under_the_old_name_is_read_under_the_new_one(tmp_path):
    options = {"brokerNames": f'{{"{A}": "prod-1"}}'}
    with EmbeddedBroker(tmp_path / "store", brokerName=A) as broker:
        broker.create_topic("T", 2)
        query = Engine(broker.address, subscribe="T")
        bodies = send(broker, "T", 10)
        query.start()
        query.crash_at = "partitions"
        with pytest.raises(Crashed):
            query.run()
    with EmbeddedBroker(tmp_path / "store", brokerName="prod-1") as broker:
        query.options.update(options, namesrvAddr=broker.address)
        query.start()
        query.run()
        assert_read(query, bodies)


# ---- on the way to a broker


def test_a_host_that_is_down_costs_one_try_however_many_queues_it_has(names, brokers, monkeypatch):
    a, b = brokers
    for broker in brokers:
        broker.create_topic("T", 8)
    query, bodies = read_before(names, brokers, 16)
    connect, tries = Connection.connect.__func__, []

    def counted(cls, address, *arguments, **more):
        tries.append(address)
        return connect(cls, address, *arguments, **{**more, "timeout_ms": 300})

    monkeypatch.setattr(Connection, "connect", classmethod(counted))
    with BlackHole() as hole:
        at_home = b.address
        b.kill()
        names.moved[at_home] = hole.address
        query.options["retryTimeoutMs"] = "0"
        query.stop()
        query.start()
        with pytest.raises(BrokersAway, match=f"broker {B} has not answered"):
            query.run()
        assert tries.count(hole.address) == 2  # the first, and once more after a pause
        del names.moved[at_home]
    b.restart()
    bodies += send(a, "T", 2) + send(b, "T", 2)
    query.start()
    query.run()
    assert_read(query, bodies)


@pytest.mark.wide
def test_a_nat_that_forgets_idle_connections_costs_no_batch(names, brokers, monkeypatch):
    a, _ = brokers
    with Nat(a.address) as nat:
        names.moved[a.address] = nat.address
        query, bodies = read_before(names, brokers, requestTimeoutMs=300)
        for number in range(4):
            nat.forget()
            monkeypatch.setattr(tasks, "_addresses", {})  # Spark has started another Python worker
            bodies += to_broker(a, names, f"{number}")
            assert query.trigger()
        assert_read(query, bodies)


def to_broker(broker, names, text):
    """A message to its first queue, sent around whatever stands before it."""
    moved, names.moved = names.moved, {}
    with Producer("feeder", broker.address) as producer:
        producer.send(Message("T", text.encode()), MessageQueue("T", A, 0))
    names.moved = moved
    return [text]


def test_hiccups_that_lie_far_apart_are_each_waited_for(brokers, names, monkeypatch):
    """Further apart than a broker is waited for, with no question in between."""
    _, b = brokers
    query, bodies = read_before(names, brokers, requestTimeoutMs=200, retryTimeoutMs=10_000)
    ahead = [0.0]
    monkeypatch.setattr(
        asking,
        "time",
        SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0], sleep=time.sleep),
    )
    for number in range(2):
        b.pause()
        back = threading.Timer(0.6, b.resume)
        back.start()
        query.trigger()
        back.join()
        ahead[0] += 3_600
        bodies += send(b, "T", 2, f"after hiccup {number}")
    query.run()
    assert_read(query, bodies)


@pytest.mark.wide
def test_a_broker_that_is_gone_on_without_is_dialled_aside(brokers, names, monkeypatch):
    """Who waited for it from here on would wait for an hour."""
    a, b = brokers
    query, bodies = read_before(names, brokers, requestTimeoutMs=300, onBrokerAway="skip")
    b.pause()
    bodies += send(a, "T", 2)
    query.run()
    monkeypatch.setattr(asking, "CONNECT_TIMEOUT_MS", 3_600_000)
    may_connect, agreement = threading.Event(), Connections.agreement

    def held(connections, address):
        if address == b.address:
            assert may_connect.wait(60)
        return agreement(connections, address)

    monkeypatch.setattr(Connections, "agreement", held)
    for _ in range(5):
        bodies += send(a, "T", 1)
        assert query.trigger()
    b.resume()
    may_connect.set()
    bodies += send(b, "T", 2)
    while read_of(query, B) < 6:
        query.trigger()
    query.run()
    assert_read(query, bodies)
