"""Cached send plans stay valid as long as a client's headers do not change."""

import dataclasses
import random

import pytest
from support.brokers.connections import FakeConnection
from support.brokers.processors import nobody_waits, saved_at_once
from support.clients.remoting_clients import batch_request, send_request
from support.stores.small_store import small_config

from rmq_spark.errors import HeaderError
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message.hosts import parse_host
from rocketpoll.broker.processor.request import RequestRejected, TopicNotSaved
from rocketpoll.broker.processor.sends.admission import TopicAdmission
from rocketpoll.broker.processor.sends.fast_path import cached_send
from rocketpoll.broker.processor.sends.fast_path.cached_send import (
    CACHED_SENDS_MAX,
    ClientSendCache,
    SendCache,
)
from rocketpoll.broker.settings.config import BrokerConfig

BORN, STORED = parse_host("10.0.0.9:40000"), parse_host("[2001:db8::1]:9876")


@pytest.fixture
def admission(parts):
    return TopicAdmission(
        BrokerConfig(store=small_config(parts.root)), parts.topics, saved_at_once, nobody_waits
    )


@pytest.fixture
def plans(admission):
    return ClientSendCache(admission, BORN, STORED, lambda _: None)


def changed(request, **fields):
    return request._replace(ext_fields={**request.ext_fields, **fields})


def test_second_message_of_a_shape_reuses_the_cached_send(plans):
    first, born_timestamp, properties = plans.resolve(send_request("a", properties={"KEYS": "1"}))
    assert (born_timestamp, properties) == (1_600_000_000_000, "KEYS\x011\x02")
    again = changed(send_request("b", properties={"KEYS": "2"}), g="1600000000005")
    second, born_timestamp, properties = plans.resolve(again)
    assert second is first
    assert (born_timestamp, properties) == (1_600_000_000_005, "KEYS\x012\x02")


def test_long_and_short_header_names_give_the_same_send_plan(plans):
    long_names, *long = plans.resolve(send_request("a", code=RequestCode.SEND_MESSAGE))
    short_names, *short = plans.resolve(send_request("a"))
    assert long_names is not short_names
    assert (long_names.header, long) == (short_names.header, short)


@pytest.mark.parametrize(
    "fields", [{"e": "1"}, {"f": "1"}, {"h": "9"}, {"j": "3"}, {"a": "Q"}, {"m": "true"}]
)
def test_send_with_other_fields_gets_its_own_plan(plans, fields):
    first, _, _ = plans.resolve(send_request("a"))
    request = changed(send_request("a"), **fields)
    other, _, _ = plans.resolve(request)
    assert other is not first
    assert plans.resolve(request)[0] is other
    common = other.template.common
    assert common.queue_id == int(fields.get("e", 0))
    assert (common.flag, common.reconsume_times) == (
        int(fields.get("h", 0)),
        int(fields.get("j", 0)),
    )


def test_cached_send_records_have_born_and_store_host(plans):
    plan, _, _ = plans.resolve(send_request("a", sys_flag=0x14))
    common = plan.template.common
    assert (common.born_host, common.store_host) == (BORN.encode(), STORED.encode())
    assert common.sys_flag == 0x20
    assert bytes.fromhex(plan.id_start) == STORED.encode()


def test_cached_send_distinguishes_batches_and_retries(plans, parts):
    parts.make_topic("%RETRY%g")
    assert plans.resolve(batch_request("a"))[0].is_batch
    assert plans.resolve(send_request("a", batch=True))[0].is_batch
    assert plans.resolve(send_request("a", topic="%RETRY%g"))[0].is_retry
    plan, _, _ = plans.resolve(send_request("a"))
    assert (plan.is_batch, plan.is_retry) == (False, False)


def test_cached_send_is_resolved_again_after_its_topic_changed(plans, parts):
    request = send_request("a", queue_id=3)
    first, _, _ = plans.resolve(request)
    parts.topics.put(TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=8))
    assert plans.resolve(request)[0] is not first
    parts.topics.put(dataclasses.replace(parts.topics.get("T"), perm=4))
    with pytest.raises(RequestRejected, match="may not be written"):
        plans.resolve(request)
    parts.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    with pytest.raises(RequestRejected, match="is illegal"):
        plans.resolve(request)
    parts.topics.delete("T")
    assert plans.resolve(request)[0].topic_config is parts.topics.get("T")


def test_cached_send_is_suspended_during_topic_deletion(plans, parts):
    request = send_request("a")
    plan, _, _ = plans.resolve(request)
    parts.topics.begin_deletion("T")
    with pytest.raises(TopicNotSaved):
        plans.resolve(request)
    parts.topics.cancel_deletion("T")
    assert plans.resolve(request)[0].template is plan.template


def test_cached_send_without_queue_id_picks_any_queue(plans):
    request = send_request("a", queue_id=-1)
    found = {plans.resolve(request)[0].template.queue for _ in range(100)}
    assert found == {("T", queue_id) for queue_id in range(4)}


@pytest.mark.parametrize("born", ["", "x", "1.5", "9" * 19, None])
def test_invalid_born_timestamp_is_refused_with_a_cached_plan(plans, born):
    plans.resolve(send_request("a"))
    request = send_request("a")
    fields = {
        key: value for key, value in request.ext_fields.items() if key != "g" or born is not None
    }
    if born is not None:
        fields["g"] = born
    with pytest.raises(HeaderError, match=r"extFields\.g"):
        plans.resolve(request._replace(ext_fields=fields))


def test_cached_send_cache_is_bounded(plans):
    for number in range(CACHED_SENDS_MAX + 10):
        plans.resolve(send_request("a", flag=0)._replace(opaque=number))
        plans.resolve(changed(send_request("a"), h=str(number)))
    assert len(plans._by_key) <= CACHED_SENDS_MAX
    plans._by_key.clear()
    plans.resolve(changed(send_request("a"), a="P" * 10_000))
    assert not plans._by_key


def test_cached_sends_of_all_clients_are_limited_and_oldest_evicted(admission, monkeypatch):
    monkeypatch.setattr(cached_send, "CACHED_SENDS_MAX", 4)
    monkeypatch.setattr(cached_send, "CACHED_SENDS_TOTAL_MAX", 10)
    table = SendCache(admission, lambda _: STORED)
    clients = [FakeConnection(name) for name in "abcd"]
    for client in clients[:3]:
        for flag in range(3):
            table.for_client(client).resolve(changed(send_request("a"), h=str(flag)))
    assert len(table) == 9
    last = clients[3]
    for flag in range(2):
        table.for_client(last).resolve(changed(send_request("a"), h=str(flag)))
    assert len(table) == 8
    assert [len(table.for_client(client)) for client in clients] == [0, 3, 3, 2]


def test_cached_send_count_stays_right_over_random_changes(admission, monkeypatch):
    monkeypatch.setattr(cached_send, "CACHED_SENDS_MAX", 4)
    monkeypatch.setattr(cached_send, "CACHED_SENDS_TOTAL_MAX", 10)
    dice = random.Random(20_260_000)
    table = SendCache(admission, lambda _: STORED)
    clients = [FakeConnection(str(number)) for number in range(6)]
    for _ in range(2_000):
        client = dice.choice(clients)
        if dice.random() < 0.05:
            client.is_closed = not client.is_closed
            table.discard(client)
        request = changed(send_request("a"), h=str(dice.randrange(8)))
        plan, _, _ = table.for_client(client).resolve(request)
        assert plan.header.flag == int(request.ext_fields["h"])
        kept = [table.for_client(each) for each in clients if not each.is_closed]
        assert len(table) == sum(map(len, kept)) <= 10
        assert all(len(plans) <= 4 for plans in kept)


def test_cached_send_is_not_cached_while_sends_are_parked_for_the_topic(parts):
    """Otherwise the next send would not check whether it must wait, and would overtake the parked
    ones."""
    waiting = {"T"}
    config = BrokerConfig(store=small_config(parts.root))
    plans = ClientSendCache(
        TopicAdmission(config, parts.topics, saved_at_once, waiting.__contains__),
        BORN,
        STORED,
        lambda _: None,
    )
    plans.resolve(send_request("a"))
    assert len(plans) == 0
    waiting.clear()
    plans.resolve(send_request("a"))
    assert len(plans) == 1
