"""Queues assigned by the name of a broker that no name server knows at the moment.

RocketMQ's name servers remove a broker as soon as it is down. So the broker may be restarting, or
its name may be wrong: a query cannot tell.
"""

import json
import traceback

import pytest
from support.spark.forgotten_broker import A0, B0, B1, BOTH, forgetful_pair, places
from support.spark.source_queries import options_for, schema_of

from rmq_spark.client import failure_log
from rmq_spark.spark.batch_reader import BatchReader
from rmq_spark.spark.errors import BrokersAway, DataLoss, OptionError
from rmq_spark.spark.plan.micro_batch_planner import NO_LIMITS
from rmq_spark.spark.preflight import check_with_brokers
from rmq_spark.wire.bodies.clients import TopicRouteData

NO_WAY = "cannot reach broker b: no name server knows a broker of that name"
A_ALONE = json.dumps({"T": {"a": [0]}})


@pytest.fixture
def pair(monkeypatch):
    with forgetful_pair(monkeypatch) as pair:
        yield pair


# ---- without a checkpoint


def test_starting_query_waits_for_an_assigned_broker_without_a_route(pair):
    pair.send(A0, B0)
    pair.forget_b(comes_back_in_pause=3)
    with pair.query(startingOffsets="latest") as batches:
        assert places(batches.initial_offset()) == {A0: 1, B0: 1, B1: 0}


def test_load_with_an_unknown_assigned_broker_logs_it_and_continues(pair, caplog):
    pair.forget_b()
    check_with_brokers(options_for(pair.names, None, assign=BOTH))
    assert pair.pauses == 0
    assert [record.message for record in caplog.records] == [
        "option assign: no name server knows broker b at the moment; they know a.",
        f"requests to broker b failed, continuing without it: {NO_WAY}",
    ]


@pytest.mark.parametrize(
    ("assigned", "known"),
    [
        ({"a": [0], "broker-b": [0]}, "they know a, b."),
        ({"bb": [0]}, "they know a, b. Did you mean b?"),
        ({"a": [0], "bb": [0]}, "they know a, b. Did you mean b?"),
    ],
)
def test_assigned_broker_name_that_stays_unknown_ends_the_start(pair, assigned, known):
    name = [*assigned][-1]
    with (
        pair.query(assign=json.dumps({"T": assigned})) as batches,
        pytest.raises(OptionError) as raised,
    ):
        batches.initial_offset()
    assert str(raised.value) == (
        f"option assign: it names broker {name}, which no name server has known for 2000 ms "
        f"(option retryTimeoutMs); {known} Correct the name; or start the broker, and then this "
        "query"
    )
    assert "".join(traceback.format_exception(raised.value)).count("Traceback") == 1
    assert pair.pauses >= 10


def test_known_broker_that_is_down_is_away_not_misspelled(pair):
    pair.forget_b(comes_back_in_pause=1)
    pair.b.stop()
    with (
        pair.query(retryTimeoutMs="1000") as batches,
        pytest.raises(BrokersAway, match="broker b has not answered for 1000 ms"),
    ):
        batches.initial_offset()


def test_assigned_queues_missing_on_running_brokers_are_refused_at_once(pair):
    pair.b.delete_topic("T")
    with pytest.raises(OptionError, match=r"(?m)topic T has no queue 0 on broker b: it is on a$"):
        check_with_brokers(options_for(pair.names, None, assign=BOTH))
    pair.b.create_topic("T", 1)
    with pytest.raises(OptionError, match=r"(?m)topic T has no queue 1 on broker b$"):
        check_with_brokers(options_for(pair.names, None, assign=BOTH))
    any_broker = json.dumps({"T": [0, 2]})
    with pytest.raises(OptionError, match=r"(?m)topic T has no queue 2$"):
        check_with_brokers(options_for(pair.names, None, assign=any_broker))
    assert pair.pauses == 0


def test_assigned_queue_missing_on_a_returning_broker_is_refused(pair):
    pair.forget_b(comes_back_in_pause=1)
    pair.b.create_topic("T", 1)
    with (
        pair.query() as batches,
        pytest.raises(OptionError, match=r"(?m)topic T has no queue 1 on broker b$"),
    ):
        batches.initial_offset()


def test_assigned_queue_is_refused_by_a_route_that_names_no_broker(pair, monkeypatch):
    said_by = pair.names._said_by

    def said(broker, request, body):
        return TopicRouteData() if body is TopicRouteData else said_by(broker, request, body)

    monkeypatch.setattr(pair.names, "_said_by", said)
    with (
        pair.query() as batches,
        pytest.raises(OptionError, match=r"(?m)topic T has no queue 0 on broker a$"),
    ):
        batches.initial_offset()


def test_sql_filter_is_checked_by_the_reachable_brokers(pair):
    pair.forget_b()
    check_with_brokers(options_for(pair.names, None, assign=BOTH, sql="n > 1"))
    with pytest.raises(OptionError, match="option sql: broker a does not filter by 'n >'"):
        check_with_brokers(options_for(pair.names, None, assign=BOTH, sql="n >"))


def test_batch_read_of_an_unknown_assigned_broker_waits_or_fails(pair):
    pair.send(A0, B0)
    pair.forget_b(comes_back_in_pause=2)
    given = {"namesrvAddr": pair.names.address, "assign": BOTH, "columns": "body"}
    reader = BatchReader(given, schema_of("body binary"))
    assert {piece.queue for part in reader.partitions() for piece in part.ranges} == {A0, B0}
    pair.forget_b()
    with pytest.raises(OptionError, match="assign: it names broker b, which no name server has"):
        BatchReader({**given, "retryTimeoutMs": "400"}, schema_of("body binary")).partitions()


# ---- with a checkpoint


@pytest.fixture
def checkpoint(pair):
    """Return the offset of a query that has read one message of each queue."""
    pair.send(A0, B0, B1)
    with pair.query() as batches:
        yield batches.latest_offset(batches.initial_offset(), NO_LIMITS)


def test_resumed_query_waits_for_an_unknown_assigned_broker_and_logs_once(pair, checkpoint, caplog):
    pair.send(A0, B0)
    pair.forget_b(comes_back_in_pause=3)
    with pair.query() as batches:
        end = batches.latest_offset(checkpoint, NO_LIMITS)
        assert places(end) == {A0: 2, B0: 2, B1: 1}
        assert len(batches.plan_ranges(checkpoint, end)) == 2
        assert pair.pauses == 3  # a query of the name servers follows each
    said = [record.message for record in caplog.records if record.name == failure_log.__name__]
    assert said == [
        f"requests to broker b failed, retrying: {NO_WAY}",
        "requests to broker b recovered after 0.6 s",
    ]


@pytest.mark.parametrize("available_now", [False, True])
def test_assigned_broker_that_is_gone_for_good_is_data_loss(pair, checkpoint, available_now):
    pair.send(A0)
    pair.forget_b()
    with pair.query() as batches:
        if available_now:
            batches.prepare_available_now()
        with pytest.raises(
            DataLoss, match="no name server knows broker b any more; the known brokers are a"
        ):
            batches.latest_offset(checkpoint, NO_LIMITS)
    with pair.query(failOnDataLoss="false") as batches:
        if available_now:
            batches.prepare_available_now()
        end = batches.latest_offset(checkpoint, NO_LIMITS)
    assert places(end) == {A0: 2, B0: 1, B1: 1}
    assert end.missing_brokers == ("b",)


def test_assigned_broker_that_is_gone_is_away_and_no_data_loss(pair, checkpoint):
    """A removed broker looks like an unreachable one."""
    of_b = {"assign": json.dumps({"T": {"b": [0, 1]}}), "failOnDataLoss": "false"}
    with pair.query(**of_b) as batches:
        start = batches.latest_offset(batches.initial_offset(), NO_LIMITS)
    pair.forget_b()
    with (
        pair.query(**of_b) as batches,
        pytest.raises(BrokersAway, match="broker b has not answered for 2000 ms"),
    ):
        batches.latest_offset(start, NO_LIMITS)


def test_available_now_includes_messages_of_a_returning_assigned_broker(pair, checkpoint):
    pair.send(A0, B0)
    pair.forget_b(comes_back_in_pause=2)
    with pair.query() as batches:
        batches.prepare_available_now()
        assert places(batches.latest_offset(checkpoint, NO_LIMITS)) == {A0: 2, B0: 2, B1: 1}


def test_broker_away_skip_continues_without_an_assigned_broker(pair, checkpoint):
    pair.send(A0, B0)
    pair.forget_b()
    with pair.query(onBrokerAway="skip") as batches:
        end = batches.latest_offset(checkpoint, NO_LIMITS)
        assert places(end) == {A0: 2, B0: 1, B1: 1}
        assert pair.pauses == 0
        pair.names.brokers.append(pair.b)
        pair.clock.now += 10  # the next query of the name servers is due
        while places(end)[B0] == 1:  # the connection is made in another thread
            pair.send(A0)
            end = batches.latest_offset(end, NO_LIMITS)
        assert places(end)[B0] == 2


def test_newly_assigned_queues_wait_for_their_broker(pair):
    pair.send(A0, B0)
    with pair.query(assign=A_ALONE) as batches:
        before = batches.latest_offset(batches.initial_offset(), NO_LIMITS)
    pair.send(A0)
    pair.forget_b(comes_back_in_pause=3)
    with pair.query() as batches:
        assert places(batches.latest_offset(before, NO_LIMITS)) == {A0: 2, B0: 1}
    for available_now in (False, True):
        with pair.query(assign=json.dumps({"T": {"a": [0], "bb": [0]}})) as batches:
            if available_now:
                batches.prepare_available_now()
            with pytest.raises(OptionError, match=r"it names broker bb, .* Did you mean b\?"):
                batches.latest_offset(before, NO_LIMITS)


def test_assigned_broker_that_goes_during_the_query_is_waited_for(pair, checkpoint):
    with pair.query() as batches:
        assert batches.latest_offset(checkpoint, NO_LIMITS) == checkpoint
        pair.send(A0, B0)
        with pair.b.away():
            pair.forget_b()
            with pytest.raises(DataLoss, match="no name server knows broker b any more"):
                batches.latest_offset(checkpoint, NO_LIMITS)
        pair.names.brokers.append(pair.b)
        assert places(batches.latest_offset(checkpoint, NO_LIMITS)) == {A0: 2, B0: 2, B1: 1}
