"""Consumer groups whose members join, leave and die: every message is delivered, at the latest
after a rebalance."""

import logging
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.brokers.broker_kinds import NAME, RocketPollBroker, wait_until
from support.brokers.clusters import FIRST, Cluster
from support.brokers.in_process import BrokerThread, small_broker
from support.clients.fake_members import implementation_of
from support.clients.thread_leaks import none_left, threads_of_clients
from support.rocketmq.real_broker import free_port

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.consumer import group_lifecycle
from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.offsets.local_offset_store import offset_file
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.rebalance.rebalance_service import RETRY_MS, Rebalance
from rmq_spark.client.consumer.rebalance.strategies import (
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueConsistentHash,
)
from rmq_spark.client.consumer.settings import LitePullSettings, PushSettings
from rmq_spark.client.consumer.simple_consumer import SimpleConsumer
from rmq_spark.client.errors import (
    ClientShutDown,
    MessageRejected,
    OffsetFileDamaged,
    RequestTimeout,
    RouteNotFound,
    TopicNotUsable,
)
from rmq_spark.client.instance import instance
from rmq_spark.client.instance.instance import SHUTDOWN_MS, ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer import producer
from rmq_spark.client.producer.producer import Producer
from rmq_spark.wire.bodies.clients import MessageModel
from rocketpoll.broker.store.config import FlushDiskType

REBALANCE_S = 20
QUEUES = 8
STOPS = 20
STOP_SECONDS_MAX = 60
MEMBER = Path(__file__).parent / "consuming_member.py"


class Member:
    """A consumer that polls in a thread and records its messages."""

    def __init__(self, cluster, group, topic, seen, **settings):
        self.consumer = LitePullConsumer(
            group,
            instance=cluster.instance(),
            settings=LitePullSettings(consume_from_where=FIRST, **settings),
        )
        self.consumer.subscribe(topic)
        self.consumer.start()
        self._seen = seen
        self._thread = threading.Thread(target=self._consume)
        self._thread.start()

    def _consume(self):
        try:
            while True:
                for message in self.consumer.poll(1_000):
                    self._seen.add(message.body.decode())
        except ClientShutDown:
            pass

    def leave(self):
        self.consumer.shutdown()
        self._thread.join()


class PushMember:
    """A consumer whose listener records its messages."""

    def __init__(self, cluster, group, topic, seen, **settings):
        self.consumer = PushConsumer(
            group,
            instance=cluster.instance(),
            listener=lambda messages, _: seen.update(each.body.decode() for each in messages),
            settings=PushSettings(consume_from_where=FIRST, **settings),
        )
        self.consumer.subscribe(topic)
        self.consumer.start()

    def leave(self):
        self.consumer.shutdown()


class MemberProcess:
    """A member in its own process, which tests can kill."""

    def __init__(self, cluster, group, topic, seen):
        self._process = subprocess.Popen(
            [sys.executable, str(MEMBER), cluster.name_server, group, topic],
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self._reader = threading.Thread(
            target=lambda: seen.update(map(str.strip, self._process.stdout))
        )
        self._reader.start()

    def leave(self):
        self._end(signal.SIGTERM)
        assert self._process.returncode == 0

    def kill(self):
        self._end(signal.SIGKILL)

    def _end(self, how):
        self._process.send_signal(how)
        self._process.wait(STOP_SECONDS_MAX)
        self._reader.join()
        self._process.stdout.close()


class SteadySender:
    """Sends in a thread, and reports its progress."""

    def __init__(self, cluster, topic):
        self.sent = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(cluster, topic))
        self._thread.start()

    def _run(self, cluster, topic):
        while not self._stopped.wait(0.005):
            cluster.send(topic, self.sent, queues=QUEUES, queue_id=self.sent % QUEUES)
            self.sent += 1

    def stop(self):
        self._stopped.set()
        self._thread.join()


def shares_fit(members, topic):
    """Return whether every queue has exactly one owner."""
    owned = [
        queue for each in members for queue in each.consumer.assignment() if queue.topic == topic
    ]
    return len(owned) == len(set(owned)) == QUEUES


@pytest.mark.parametrize("kind", [Member, PushMember], ids=["lite", "push"])
def test_members_joining_and_leaving_lose_no_message(cluster, kind):
    topic, group, seen, sent = cluster.topic(queues=QUEUES), cluster.group(), set(), 0
    dice, members = random.Random(kind.__name__), []
    for number_of_members in (2, 5, 3, 1, 4, 2):
        while len(members) < number_of_members:
            members.append(kind(cluster, group, topic, seen))
        while len(members) > number_of_members:
            members.pop(dice.randrange(len(members))).leave()
        bodies = [f"{sent + number}" for number in range(200)]
        cluster.send(topic, *bodies, queues=QUEUES)
        sent += 200
        wait_until("shares that fit", lambda: shares_fit(members, topic), REBALANCE_S)
    wait_until("all messages", lambda: len(seen) == sent, REBALANCE_S)
    for member in members:
        member.leave()
    assert cluster.members(group) == ()


def test_rebalance_gives_queues_of_a_killed_member_to_the_others(cluster):
    topic, group, seen, of_the_dead = cluster.topic(queues=QUEUES), cluster.group(), set(), set()
    members = [Member(cluster, group, topic, seen) for _ in range(2)]
    dying = MemberProcess(cluster, group, topic, of_the_dead)
    wait_until("three members", lambda: len(cluster.members(group)) == 3)
    wait_until(
        "a share for it", lambda: sum(len(m.consumer.assignment()) for m in members) < QUEUES
    )
    cluster.send(topic, *range(400), queues=QUEUES)
    dying.kill()
    cluster.send(topic, *range(400, 800), queues=QUEUES)
    wait_until("shares that fit", lambda: shares_fit(members, topic), REBALANCE_S)
    wait_until("all messages", lambda: len(seen | of_the_dead) == 800, REBALANCE_S)
    for member in members:
        member.leave()


@pytest.mark.deep  # `make check` has members that join, leave and are killed in one process
def test_processes_join_leave_and_are_killed_while_messages_flow(cluster):
    topic, group, seen = cluster.topic(queues=QUEUES), cluster.group(), set()
    dice, members = random.Random(5), []
    sender = SteadySender(cluster, topic)
    try:
        for joining, leaving, dying in [
            (2, 0, 0),
            (3, 0, 0),
            (0, 1, 1),
            (2, 0, 1),
            (0, 1, 1),
            (1, 1, 0),
        ]:
            for end in [MemberProcess.leave] * leaving + [MemberProcess.kill] * dying:
                end(members.pop(dice.randrange(len(members))))
            members += [MemberProcess(cluster, group, topic, seen) for _ in range(joining)]
            count = len(members)
            wait_until(f"{count} members", lambda count=count: len(cluster.members(group)) == count)
            so_far = set(map(str, range(sender.sent)))
            wait_until(
                "all that was sent so far", lambda so_far=so_far: so_far <= seen, REBALANCE_S
            )
    finally:
        sender.stop()
        everything = set(map(str, range(sender.sent)))
        try:
            wait_until("all messages", lambda: everything <= seen, REBALANCE_S)
        finally:
            for member in members:
                member.kill()
    # the broker notices the closed connection
    wait_until("nobody is left", lambda: cluster.members(group) == ())


def test_members_continue_when_their_broker_returns(tmp_path):
    port, seen = free_port(), set()
    config = small_broker(tmp_path, listenPort=port, brokerName=NAME)
    with BrokerThread(config):
        cluster = Cluster(f"127.0.0.1:{port}", f"127.0.0.1:{port}", NAME)
        topic, group = cluster.topic(queues=QUEUES), cluster.group()
        members = [kind(cluster, group, topic, seen) for kind in (Member, PushMember)]
        cluster.send(topic, *range(100), queues=QUEUES)
        wait_until("all messages", lambda: len(seen) == 100)
    with BrokerThread(config):
        cluster.send(topic, *range(100, 200), queues=QUEUES)
        wait_until("all messages", lambda: len(seen) == 200, REBALANCE_S)
        wait_until("shares that fit", lambda: shares_fit(members, topic), REBALANCE_S)
        for member in members:
            member.leave()
        cluster.close()


@pytest.mark.parametrize("kind", [Member, PushMember], ids=["lite", "push"])
def test_shutdown_does_not_wait_for_a_silent_broker(kind, tmp_path):
    broker = RocketPollBroker("", tmp_path, FlushDiskType.ASYNC_FLUSH)
    try:
        cluster = Cluster(broker.address, broker.address, NAME)
        topic, seen = cluster.topic(queues=QUEUES), set()
        member = kind(cluster, cluster.group(), topic, seen)
        cluster.send(topic, *range(100), queues=QUEUES)
        wait_until("all messages", lambda: len(seen) == 100)
        broker._process.send_signal(signal.SIGSTOP)
        leaving = threading.Thread(target=member.leave)
        leaving.start()
        leaving.join(SHUTDOWN_MS / 1000 + 10)  # the broker is silent for longer
        assert not leaving.is_alive()
    finally:
        broker.close()
        cluster.close()


@pytest.mark.parametrize(
    "strategy", [AllocateMessageQueueAveragelyByCircle(), AllocateMessageQueueConsistentHash()]
)
def test_group_members_share_queues_by_the_given_strategy(cluster, strategy):
    topic, group = cluster.topic(queues=QUEUES), cluster.group()
    members = [
        Member(cluster, group, topic, set(), allocate_message_queue_strategy=strategy)
        for _ in range(3)
    ]
    wait_until("shares that fit", lambda: shares_fit(members, topic), REBALANCE_S)
    for member in members:
        member.leave()


@pytest.mark.parametrize("kind", [Member, PushMember])
def test_strategy_returning_wrong_queues_of_one_topic_leaves_other_topics_consumed(cluster, kind):
    class Strategy:
        name = "MINE"

        def allocate(self, _, queues, __):
            return ["queue 0"] if queues[0].topic == first else queues

    first, second = sorted(cluster.topic(queues=1) for _ in range(2))
    seen = set()
    cluster.send(second, "seen", queue_id=0)
    member = kind(cluster, cluster.group(), first, seen, allocate_message_queue_strategy=Strategy())
    member.consumer.subscribe(second)
    wait_until("a message of the other topic", lambda: seen == {"seen"}, REBALANCE_S)
    assert first not in {queue.topic for queue in member.consumer.assignment()}
    assert member.consumer.health().is_running
    member.leave()


def test_shutdown_does_not_wait_for_a_start_in_progress(cluster, monkeypatch):
    joins, may_go_on, ended = threading.Event(), threading.Event(), []
    consumer = LitePullConsumer(cluster.group(), cluster.name_server)
    member = implementation_of(consumer)
    join = member._join_group

    def late():
        joins.set()
        assert may_go_on.wait(STOP_SECONDS_MAX)
        join()

    def start():
        with pytest.raises(ClientShutDown):
            consumer.start()
        ended.append("start")

    monkeypatch.setattr(member, "_join_group", late)
    starting = threading.Thread(target=start)
    starting.start()
    assert joins.wait(STOP_SECONDS_MAX)
    leaving = threading.Thread(target=lambda: (consumer.shutdown(), ended.append("shutdown")))
    leaving.start()
    leaving.join(STOP_SECONDS_MAX)
    assert ended == ["shutdown"]
    may_go_on.set()
    starting.join(STOP_SECONDS_MAX)
    assert ended == ["shutdown", "start"]


class ObservedInstance(ClientInstance):
    """An instance that calls a function before each heartbeat."""

    def __init__(self, namesrv):
        self.on_heartbeat = lambda: None
        super().__init__(namesrv)

    def heartbeat(self):
        self.on_heartbeat()
        super().heartbeat()


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("kind", [LitePullConsumer, PushConsumer, SimpleConsumer])
def test_consumer_closed_repeatedly_during_its_start_leaves_its_group(running_broker, kind, times):
    more = {"listener": lambda *_: None} if kind is PushConsumer else {}
    with ObservedInstance(running_broker.address) as shared, Admin(instance=shared) as admin:
        admin.create_topic("T")
        consumer, next_one = (kind("G", instance=shared, **more) for _ in range(2))
        consumer.subscribe("T")
        shared.on_heartbeat = lambda: [consumer.close() for _ in range(times)]
        with pytest.raises(ClientShutDown, match="while it was being started"):
            consumer.start()
        shared.on_heartbeat = lambda: None
        shared.heartbeat()
        assert admin.members("G") == ()
        next_one.subscribe("T")
        with next_one:  # the instance runs, but has no member of the group
            assert len(admin.members("G")) == 1


def test_client_instance_refuses_second_consumer_of_a_group(cluster):
    topic, group, instance = cluster.topic(), cluster.group(), cluster.instance()
    first, second = (
        LitePullConsumer(group, instance=instance),
        LitePullConsumer(group, instance=instance),
    )
    for consumer in (first, second):
        consumer.subscribe(topic)
    first.start()
    with pytest.raises(MessageRejected, match="a group that no other consumer of this client has"):
        second.start()
    wait_until("queues", first.assignment)
    assert cluster.members(group) == (instance.client_id,)
    first.shutdown()


def test_consumer_with_damaged_offset_file_does_not_start_or_end_the_instance(tmp_path):
    with ClientInstance("127.0.0.1:1") as instance:
        damaged = offset_file(instance.persistent_id, "G", tmp_path)
        damaged.parent.mkdir(parents=True)
        damaged.write_text("{damaged")
        settings = LitePullSettings(
            message_model=MessageModel.BROADCASTING, local_offset_directory=tmp_path
        )
        with pytest.raises(OffsetFileDamaged):
            LitePullConsumer("G", instance=instance, settings=settings).start()
        with instance:
            pass  # not ended, so it can be started


def test_failed_consumer_start_does_not_release_the_shared_instance():
    class Ended(ClientInstance):
        users = 0

        def stop(self):
            self.users -= 1

    instance = Ended("127.0.0.1:1")
    instance.shutdown()
    with pytest.raises(ClientShutDown):
        LitePullConsumer("G", instance=instance).start()
    assert instance.users == 0


def test_concurrent_subscriptions_are_all_kept():
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            consumer, together = LitePullConsumer("G", "127.0.0.1:1"), threading.Barrier(8)

            def subscribe(topic, consumer=consumer, together=together):
                together.wait(10)
                consumer.subscribe(topic, "a || b || c")

            topics = [f"T{number}" for number in range(8)]
            threads = [threading.Thread(target=subscribe, args=(topic,)) for topic in topics]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
            assert consumer.topics == frozenset(topics)
    finally:
        sys.setswitchinterval(old)


def test_rebalance_without_a_member_list_keeps_queues(cluster, monkeypatch):
    topic, asked = cluster.topic(queues=QUEUES), threading.Event()
    member = Member(cluster, cluster.group(), topic, set())
    wait_until("queues", lambda: shares_fit([member], topic))

    def times_out(_):
        asked.set()
        raise RequestTimeout("b:1", 38, 3_000)

    monkeypatch.setattr(implementation_of(member.consumer)._brokers, "consumer_ids", times_out)
    implementation_of(member.consumer).request_rebalance()
    assert asked.wait(REBALANCE_S)
    monkeypatch.setattr(implementation_of(member.consumer)._brokers, "consumer_ids", lambda _: ())
    assert implementation_of(member.consumer)._rebalance_service.do_rebalance() == 1_000
    assert shares_fit([member], topic)
    member.leave()


@pytest.mark.parametrize(
    ("topic", "warnings"), [("%RETRY%shipping", 0), ("%RETRY%shipping was lost", 1), ("orders", 1)]
)
def test_missing_retry_topic_route_is_logged_without_a_warning(
    topic, warnings, caplog, monkeypatch
):
    consumer = PushConsumer("shipping", "127.0.0.1:1", listener=print)
    topic, is_lost, _ = topic.partition(" was lost")
    no_route = (
        TopicNotUsable(topic, "its queues cannot be read") if is_lost else RouteNotFound(topic)
    )

    def has_no_route(*_):
        raise no_route

    monkeypatch.setattr(implementation_of(consumer), "_subscriptions", {topic: None})
    monkeypatch.setattr(Rebalance, "allocate", has_no_route)
    caplog.set_level(logging.INFO)
    # it retries soon
    assert implementation_of(consumer)._rebalance_service.do_rebalance() == RETRY_MS
    assert [each.levelno for each in caplog.records].count(logging.WARNING) == warnings
    assert f"shipping: rebalancing {topic} failed, retrying" in caplog.text


@pytest.mark.parametrize("kind", [Member, PushMember], ids=["lite", "push"])
def test_shutdown_at_any_moment_leaks_no_thread(cluster, kind):
    topic, group = cluster.topic(queues=QUEUES), cluster.group()
    cluster.send(topic, *range(200), queues=QUEUES)
    before = threads_of_clients().keys()
    for number in range(STOPS):
        member = kind(cluster, group, topic, set())
        if number % 2:
            wait_until("queues", member.consumer.assignment)
        member.leave()
    wait_until("only threads from before", lambda: threads_of_clients().keys() <= before)
    assert cluster.members(group) == ()


@pytest.mark.parametrize("kind", [LitePullConsumer, PushConsumer, Producer])
def test_shutdown_leaves_no_client_threads_and_logs_no_warning(cluster, kind, caplog, monkeypatch):
    """A program that counts threads after a shutdown finds none, unless the machine is too slow for
    the timeouts."""
    for module in (instance, group_lifecycle, producer):
        for name in ("SHUTDOWN_MS", "THREAD_JOIN_MS_MAX"):
            monkeypatch.setattr(module, name, 60_000, raising=False)
    topic = cluster.topic(queues=QUEUES)
    before = threads_of_clients().keys()
    caplog.set_level(logging.WARNING)
    for number in range(10):
        more = {"listener": lambda *_: None} if kind is PushConsumer else {}
        with kind(cluster.group(), cluster.name_server, **more) as running:
            if kind is Producer:
                running.send(Message(topic, b"x"))
            else:
                running.subscribe(topic)
        left = threads_of_clients().keys() - before
        assert not left, (number, left)
    assert caplog.messages == []


@pytest.mark.parametrize("kind", ["lite", "concurrent", "orderly"])
def test_consumer_of_a_shut_down_instance_stops_and_can_be_shut_down(cluster, kind):
    """The shutdown of an instance stops all its consumers."""
    topic, got = cluster.topic(queues=QUEUES), []
    cluster.send(topic, *range(20), queues=QUEUES)
    client = cluster.instance()
    if kind == "lite":
        settings = LitePullSettings(consume_from_where=FIRST)
        consumer = LitePullConsumer(cluster.group(), instance=client, settings=settings)
    else:
        name = "listener" if kind == "concurrent" else "orderly_listener"
        settings = PushSettings(consume_from_where=FIRST)
        listener = {name: lambda *_: got.append(1)}
        consumer = PushConsumer(cluster.group(), instance=client, settings=settings, **listener)
    with none_left():
        consumer.subscribe(topic)
        consumer.start()
        wait_until("its queues", consumer.assignment)
        wait_until("messages", lambda: got or (kind == "lite" and consumer.poll(100)))
        client.shutdown()
    consumer.shutdown()
    assert not consumer.is_running


def test_consumer_methods_are_those_of_its_implementation(monkeypatch):
    consumer = PushConsumer("g", "127.0.0.1:1", listener=lambda *_: None)
    kind = type(implementation_of(consumer))
    monkeypatch.setattr(kind, "health", lambda _: "of this kind", raising=False)
    assert consumer.health() == "of this kind"
    consumer.shutdown()
