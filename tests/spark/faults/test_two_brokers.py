"""Two brokers behind a name server, ours and RocketMQ's: one is down, drained, renamed
or removed."""

import json
import threading

import pytest
from support.spark.broker_pairs import A, B, warnings_of
from support.spark.streaming_engine import Crashed, assert_read

from rmq_spark.spark.errors import BrokersAway, DataLoss
from rmq_spark.spark.monitoring.lag import lag_between
from rmq_spark.spark.plan.source_offset import SourceOffset, sizes_in

NEW = "prod-1"

# ---- an unreachable broker


def test_batch_waits_for_a_broker_that_is_down(pair, caplog):
    """Otherwise acknowledged messages of this broker would come late, after those of
    the other one."""
    query, bodies = pair.read_before()
    bodies += pair.send(pair.b, 2)
    pair.b.kill()
    bodies += pair.send(pair.a, 2)
    planned = []
    asked = threading.Thread(target=lambda: planned.append(query.trigger()))
    asked.start()
    asked.join(2)
    assert not planned
    pair.b.restart()
    asked.join()
    query.run()
    assert_read(query, bodies)
    assert len(warnings_of(caplog, f"requests to broker {B} failed, retrying")) == 1


def test_unreachable_broker_ends_the_query_after_its_retry_timeout_by_name(pair):
    query, bodies = pair.read_before(requestTimeoutMs=300, retryTimeoutMs=300)
    pair.b.pause()
    bodies += pair.send(pair.a, 2)
    with pytest.raises(
        BrokersAway, match=rf"broker {B} has not answered for 300 ms \(option retryTimeoutMs\)"
    ):
        query.run()
    pair.b.resume()
    del query.options["retryTimeoutMs"]
    query.start()
    query.run()
    assert_read(query, bodies)


def test_query_with_on_broker_away_skip_reads_the_missed_messages_after_its_restart(pair, caplog):
    query, bodies = pair.read_before(onBrokerAway="skip", retryTimeoutMs=300)
    bodies += pair.send(pair.b, 2)
    query.crash_at = "latest-done"  # the brokers were checked meanwhile
    with pytest.raises(Crashed):
        query.trigger()
    query.options["maxOffsetsPerTrigger"] = "1"
    query.start()
    query.trigger()
    pair.b.kill()
    reached = pair.read_of(query, pair.b)
    for _ in range(3):
        bodies += pair.send(pair.a, 2)
        query.run()
    assert pair.read_of(query, pair.b) == reached
    latest = query.report()
    lag = lag_between(
        SourceOffset.from_json(query.end()), SourceOffset.from_json(latest), sizes_in(latest)
    )
    assert sum(each.messages for each in lag if each.queue.broker_name == B) == 1
    assert len(warnings_of(caplog, f"requests to broker {B} failed, continuing without it")) == 1
    pair.b.restart()
    while pair.read_of(query, pair.b) == reached:
        query.trigger()
    query.run()
    assert_read(query, bodies)


def test_planned_batch_waits_for_its_broker_despite_on_broker_away_skip(pair):
    query, bodies = pair.read_before(onBrokerAway="skip")
    bodies += pair.send(pair.b, 4)
    query.crash_at = "partitions"
    with pytest.raises(Crashed):
        query.trigger()
    pair.b.kill()
    query.start()
    restarted = threading.Timer(0.5, pair.b.restart)
    restarted.start()
    query.run()
    restarted.join()
    assert_read(query, bodies)


# ---- a removed broker


def test_broker_unknown_to_all_name_servers_is_a_data_loss(pair):
    query, _ = pair.read_before(retryTimeoutMs=300)
    query.stop()
    pair.b.retire()
    pair.send(pair.a, 2)
    query.start(available_now=True)
    with pytest.raises(DataLoss) as raised:
        query.run()
    said = str(raised.value)
    assert said.startswith(
        f"no name server knows broker {B} any more; the known brokers are {A}. If it "
        "is down, start it, and then this query. If it has a new name"
    )
    queues = [f"queue {number} of {pair.topic} on {B} to offset 2" for number in range(2)]
    assert ", ".join(queues) in said


def test_drained_broker_is_read_to_its_end_and_reported_gone_after_retirement(pair):
    query, bodies = pair.read_before(retryTimeoutMs=300)
    bodies += pair.send(pair.b, 3)
    pair.drain(pair.b)
    query.run()
    assert_read(query, bodies)
    pair.b.retire()
    bodies += pair.send(pair.a, 2)
    with pytest.raises(DataLoss, match=f"no name server knows broker {B} any more"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.start()
    query.run()
    assert_read(query, bodies)
    assert query.end()["gone"] == [B]


def test_retired_broker_that_returns_is_read_from_its_old_offset(pair):
    query, bodies = pair.read_before(retryTimeoutMs=300, failOnDataLoss="false")
    bodies += pair.send(pair.b, 2)
    pair.b.retire()
    bodies += pair.send(pair.a, 2)
    query.run()
    assert query.end()["gone"] == [B]
    pair.b.restart()
    while "gone" in query.end():  # connecting does not block the query
        query.trigger()
    query.run()
    assert_read(query, bodies)


# ---- a renamed broker


@pytest.fixture(params=[(B,), (A, B)], ids=["one", "both"])
def renamed(request):
    """Return the brokers that get new names, and these names."""
    return {name: f"{NEW}-{name[-1]}" for name in request.param}


def rename(pair, names):
    for member in (pair.a, pair.b):
        if member.name in names:
            member.rename(names[member.name])


def test_renamed_broker_is_refused_with_advice_instead_of_read_again(pair, renamed):
    query, bodies = pair.read_before(retryTimeoutMs=300)
    query.stop()
    rename(pair, renamed)
    pair.send(pair.b, 2)
    query.start()
    with pytest.raises(
        DataLoss,
        match=rf'set option brokerNames to \{{"{next(iter(renamed))}": "new name"\}}',
    ):
        query.run()
    assert_read(query, bodies)


def test_broker_names_option_continues_a_renamed_broker(pair, renamed):
    query, bodies = pair.read_before(retryTimeoutMs=300)
    query.stop()
    rename(pair, renamed)
    bodies += pair.send(pair.b, 2)
    query.options["brokerNames"] = json.dumps(renamed)
    query.start()
    query.run()
    query.stop()
    assert_read(query, bodies)
    assert set(query.end()["offsets"][pair.topic]) == {pair.a.name, pair.b.name}
    bodies += pair.send(pair.b, 2)
    for given in (query.options["brokerNames"], None):  # the option may stay, but need not
        if given is None:
            del query.options["brokerNames"]
        query.start()
        query.run()
        query.stop()
    assert_read(query, bodies)


def test_batch_planned_under_a_brokers_old_name_is_read_under_the_new_one(pair):
    query, bodies = pair.read_before()
    bodies += pair.send(pair.b, 10)
    query.crash_at = "partitions"
    with pytest.raises(Crashed):
        query.run()
    pair.b.rename(NEW)
    query.options["brokerNames"] = json.dumps({B: NEW})
    query.start()
    query.run()
    assert_read(query, bodies)
