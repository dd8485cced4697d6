"""Positions name a broker that no name server knows: the query waits for it.

The broker may be down or its name may be wrong: the query cannot tell. It waits for assigned
brokers in the same way.
"""

import json
import traceback
from functools import partial

import pytest
from support.spark.forgotten_broker import A0, B0, B1, forgetful_pair, places
from support.spark.source_queries import options_for

from rmq_spark.client.api.admin_api import NameServerApi
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.plan.micro_batch_planner import NO_LIMITS
from rmq_spark.spark.plan.source_offset import SourceOffset
from rmq_spark.spark.preflight import check_with_brokers
from rmq_spark.wire.message_queue import MessageQueue

A1 = MessageQueue("T", "a", 1)
EVERY = (A0, A1, B0, B1)


def by_broker(*, topic="T", a=0, b=0, name_of_b="b"):
    """Return a position with one offset for all queues of each broker."""
    return json.dumps({topic: {"a": {"*": a}, name_of_b: {"*": b}}})


def begin(batches):
    """Plan the first batch of a query without a checkpoint, as Spark does."""
    return batches.latest_offset(batches.initial_offset(), NO_LIMITS)


@pytest.fixture
def pair(monkeypatch):
    with forgetful_pair(monkeypatch) as pair:
        pair.send(*EVERY, *EVERY)
        yield pair


SELECTIONS = [
    {"subscribe": "T"},
    {"subscribePattern": "T.*"},
    {"assign": json.dumps({"T": {"a": [0, 1], "*": [0, 1]}})},
]


# ---- starting positions


@pytest.mark.parametrize("selected", SELECTIONS)
@pytest.mark.parametrize(
    "starting",
    [
        {"startingOffsets": by_broker(a=1, b=1)},
        {"startingOffsets": by_broker(topic="*", a=1, b=1)},
        {"startingOffsets": json.dumps({"T": {"a": {"*": 1}, "b": {"0": 1, "1": 1}}})},
        {"startingOffsetsByTimestamp": by_broker(a=0, b=0)},
    ],
)
def test_starting_query_waits_for_a_broker_named_in_its_positions(pair, selected, starting):
    pair.forget_b(comes_back_in_pause=3)
    at = 0 if "startingOffsetsByTimestamp" in starting else 1
    with pair.query(**selected, **starting) as batches:
        assert places(batches.initial_offset()) == dict.fromkeys(EVERY, at)
    assert pair.pauses == 3


def test_unknown_broker_in_starting_offsets_is_waited_for_without_other_brokers(pair):
    pair.a.delete_topic("T")
    for selected in ({"subscribe": "T"}, {"assign": json.dumps({"T": [0, 1]})}):
        for starting in ({"b": {"*": 1}}, {"b": {"0": 1, "1": 1}}):
            pair.forget_b(comes_back_in_pause=3)
            positions = json.dumps({"T": starting})
            with pair.query(**selected, startingOffsets=positions) as batches:
                assert places(batches.initial_offset()) == {B0: 1, B1: 1}


@pytest.mark.parametrize(
    ("name", "known"),
    [("bb", "they know a, b. Did you mean b?"), ("prod-7", "they know a, b.")],
)
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("topic", ["T", "*"])
def test_unknown_broker_name_in_positions_ends_the_start_after_the_timeout(
    pair, option, name, known, topic
):
    options = {"subscribe": "T", option: by_broker(name_of_b=name, topic=topic)}
    with pair.query(**options) as batches:
        first = (
            batches.prepare_available_now if option == "endingOffsets" else partial(begin, batches)
        )
        with pytest.raises(OptionError) as raised:
            first()
    assert str(raised.value) == (
        f"option {option}: it names broker {name}, which no name server has known for 2000 ms "
        f"(option retryTimeoutMs); {known} Correct the name; or start the broker, and then this "
        "query"
    )
    assert "".join(traceback.format_exception(raised.value)).count("Traceback") == 1
    assert pair.pauses >= 10


def test_starting_offsets_of_queues_missing_on_known_brokers_are_refused_at_once(pair):
    pair.b.delete_topic("T")
    a_alone = json.dumps({"T": {"a": [0]}})
    for selected in ({"subscribe": "T"}, {"assign": json.dumps({"T": [0]})}, {"assign": a_alone}):
        with (
            pair.query(**selected, startingOffsets=by_broker()) as batches,
            pytest.raises(OptionError, match="it names broker b of T, but the brokers read are a"),
        ):
            begin(batches)
    pair.forget_b()
    with (  # a broker without assigned queues may be missing
        pair.query(assign=a_alone, startingOffsets=by_broker()) as batches,
        pytest.raises(OptionError, match="it names broker b of T, but the brokers read are a"),
    ):
        begin(batches)
    with (
        pair.query(subscribePattern="T.*", startingOffsets=by_broker(topic="U")) as batches,
        pytest.raises(OptionError, match="it names U, but the topics read are T"),
    ):
        begin(batches)
    assert pair.pauses == 0


def test_unknown_topic_is_refused_at_once_though_positions_name_known_brokers(pair):
    given = {"startingOffsets": json.dumps({"TT": {"a": {"*": 0}, "b": {"*": 0}}})}
    with pytest.raises(OptionError, match=r"option topic: .*TT.* Did you mean T\?"):
        check_with_brokers(options_for(pair.names, "TT", **given))


def test_starting_offsets_of_an_unknown_broker_are_checked_when_it_is_back(pair):
    pair.b.create_topic("T", 4)
    given = {"startingOffsets": by_broker(), "assign": json.dumps({"T": [3]})}
    pair.forget_b(comes_back_in_pause=2)
    with pair.query(**{**given, "startingOffsets": by_broker(topic="*")}) as batches:
        assert places(batches.initial_offset()) == {MessageQueue("T", "b", 3): 0}
    pair.forget_b(comes_back_in_pause=2)
    with (
        pair.query(**{**given, "assign": json.dumps({"T": [0, 7]})}) as batches,
        pytest.raises(OptionError, match=r"(?m)option assign: topic T has no queue 7$"),
    ):
        batches.initial_offset()
    assert pair.pauses == 2


def test_broker_appearing_during_the_route_check_is_noticed(pair, monkeypatch):
    cluster_info = NameServerApi.cluster_info

    def comes_first(calls):
        if pair.b not in pair.names.brokers:
            pair.names.brokers.append(pair.b)
        return cluster_info(calls)

    monkeypatch.setattr(NameServerApi, "cluster_info", comes_first)
    for selected in (*SELECTIONS, {"assign": json.dumps({"T": [0, 3]})}):
        pair.b.create_topic("T", 4 if "3" in str(selected) else 2)
        pair.forget_b()
        hourly = {"discoveryIntervalMs": "3600000"}
        with pair.query(**selected, **hourly, startingOffsets=by_broker()) as batches:
            assert {queue.broker_name for queue in places(batches.initial_offset())} == {"a", "b"}
    pair.a.delete_topic("T")
    pair.forget_b()
    with (
        pair.query(subscribe="T", startingOffsets=by_broker()) as batches,
        pytest.raises(OptionError, match="it names broker a of T, but the brokers read are b"),
    ):
        begin(batches)
    assert pair.pauses == 0


def test_starting_offsets_with_wait_for_topic_may_name_any_broker(pair):
    positions = json.dumps({"U": {"prod-7": {"*": 0}}, "*": {"*": {"*": -2}}})
    more = {"waitForTopic": "true", "startingOffsets": positions}
    with pair.query(subscribe="T,U", **more) as batches:
        assert places(batches.initial_offset()) == dict.fromkeys(EVERY, 0)
    assert pair.pauses == 0


# ---- ending positions


@pytest.fixture
def checkpoint(pair):
    """Return the offset of a query that has read two messages of each queue."""
    with pair.query(subscribe="T") as batches:
        found = begin(batches)
        assert places(found) == dict.fromkeys(EVERY, 2)
        yield SourceOffset.from_json(found.to_json())


@pytest.mark.parametrize("selected", SELECTIONS)
@pytest.mark.parametrize("away", ["wait", "skip"])
def test_ending_offsets_of_an_unknown_broker_are_waited_for_once(pair, checkpoint, selected, away):
    """The end of a run is determined once, including that of unreachable brokers."""
    pair.send(*EVERY, *EVERY)
    options = {**selected, "endingOffsets": by_broker(a=3, b=3), "onBrokerAway": away}
    for goes_on in (True, False):
        pair.forget_b(comes_back_in_pause=3)
        with pair.query(**options) as batches:
            batches.prepare_available_now()
            start = checkpoint if goes_on else batches.initial_offset()
            assert places(start) == dict.fromkeys(EVERY, 2 if goes_on else 0)
            end = batches.latest_offset(start, NO_LIMITS)
            assert places(end) == dict.fromkeys(EVERY, 3)
            assert batches.latest_offset(end, NO_LIMITS) == end
        assert pair.pauses == 3


def test_starting_offsets_are_ignored_after_the_query_has_a_checkpoint(pair, checkpoint):
    """The broker that `startingOffsets` names may have been removed since."""
    pair.send(A0)
    pair.forget_b()
    options = {"subscribe": "T", "startingOffsets": by_broker(), "failOnDataLoss": "false"}
    for available_now in (False, True):
        with pair.query(**options) as batches:
            if available_now:
                batches.prepare_available_now()
            end = batches.latest_offset(checkpoint, NO_LIMITS)
            assert places(end) == {A0: 3, A1: 2, B0: 2, B1: 2}
            assert end.missing_brokers == ("b",)


def test_resumed_query_is_not_delayed_by_an_unknown_topic(pair):
    pair.a.delete_topic("T")
    options = {"subscribe": "T", "startingOffsets": json.dumps({"T": {"b": {"*": 0}}})}
    with pair.query(**options) as batches:
        start = begin(batches)
    pair.send(B0)
    for available_now in (False, True):
        pair.forget_b(comes_back_in_pause=3)
        with pair.query(**options) as batches:
            if available_now:
                batches.prepare_available_now()
            assert places(batches.latest_offset(start, NO_LIMITS)) == {B0: 3, B1: 2}


# ---- batch reads
