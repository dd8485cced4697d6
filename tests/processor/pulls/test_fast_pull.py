"""The fast path for pulls gives the same responses as the slow path, and serves the expected pulls.

Clients pull in all ways, and topic, group and subscription change between pulls.
"""

import errno
import struct
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.brokers.access import WITH_USERS, Users, forged, signed
from support.brokers.twin_brokers import Twins, begun
from support.clients.remoting_clients import pull_request, send_request
from support.disks.faulty_disk import FaultIn, FaultyDisk
from support.suite.selection import count

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import RequestCode, SerializeType
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.store.files.disk import LocalDisk

SQL = {"subscription": "a > 1", "expression_type": "SQL92"}
SUBSCRIBED = {
    "all": {},
    "a tag": {"subscription": "A"},
    "two tags": {"subscription": "A || B"},
    "by SQL92": SQL,
    "nonsense": {**SQL, "subscription": "a >"},
    "what heartbeats say": {"subscription": None},
    "what later heartbeats say": {"subscription": None, "sub_version": 2},
}
FORMS = {
    "lite": {"code": RequestCode.LITE_PULL_MESSAGE},
    "one way": {"flag": 2},
    "binary": {"serialize_type": SerializeType.ROCKETMQ},
    "another version": {"version": 401},
    "a remark": {"remark": "?"},
    "a body": {"body": b"{}"},
    "few bytes": {"bytes_max": 300},
    "forged": {"is_forged": True},
}
EVERYTHING = "Topic:* All", "Group:* All"
RIGHTS = (
    EVERYTHING,
    ("Topic:T Sub Pub", "Group:G Sub"),
    ("Topic:* All", "Group:H Sub"),
    ("Topic:* Pub", "Group:* All"),
)
"""Rights that a user may have."""
pulls = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["T"] * 6 + ["U", "U", "not-there"]),
        "queue_id": st.sampled_from([0, 0, 1, 4]),
        "group": st.sampled_from(["G"] * 5 + ["H", "no group"]),
        "offsets": st.lists(st.integers(-1, 90) | st.just(1 << 62), min_size=1, max_size=9),
        "commit_offset": st.sampled_from([None, None, 3, 9]),
        "suspend_ms": st.sampled_from([None, None, 0, 2_000]),
        "subscribed": st.sampled_from(["all"] * 6 + sorted(SUBSCRIBED)),
        "form": st.sampled_from(["usual"] * 12 + sorted(FORMS)),
        "count": st.sampled_from([32, 32, 1, 10, 0, 100]),
    }
)
clients = st.integers(0, 2)
acts = st.one_of(
    *[st.tuples(st.just("pull"), clients, st.lists(pulls, min_size=1, max_size=4), st.booleans())]
    * 4,
    st.tuples(st.just("send"), clients, st.sampled_from("TU"), st.sampled_from(["", "A", "B"])),
    st.tuples(st.just("topic"), st.sampled_from([2, 4, 6]), st.sampled_from([1, 4])),
    st.tuples(st.just("group"), st.booleans()),
    st.tuples(st.just("heartbeat"), clients, st.sampled_from(["*", "A"]), st.integers(0, 3)),
    st.tuples(st.just("pass_ms"), st.sampled_from([1, 999, 2_000])),
    st.tuples(st.just("rights"), st.sampled_from(RIGHTS)),
)


class Story:
    """Does the same with both brokers."""

    def __init__(self, twins, users=None):
        self.twins = twins
        self.users = users
        self.numbers = 0
        self.clients = range(3)

    def begin(self):
        """Continue with new clients: the earlier ones have expired."""
        self.clients = range(self.clients.stop, self.clients.stop + 3)

    def number(self):
        self.numbers += 1
        return self.numbers

    def act(self, name, *given):
        getattr(self, f"act_{name}")(*given)

    def act_pull(self, client, pulls, is_cut):
        data = b"".join(map(self.bytes_of, pulls))
        places = [0, len(data) // 2, len(data)] if is_cut else [0, len(data)]
        pieces = [data[start:end] for start, end in pairwise(places)]
        self.twins.receive(self.clients[client], *pieces)
        self.twins.settle()

    def bytes_of(self, pull):
        given = {**pull, **SUBSCRIBED[pull["subscribed"]], **FORMS.get(pull["form"], {})}
        offsets = given.pop("offsets")
        body = given.pop("body", b"")
        is_forged = given.pop("is_forged", False)
        del given["subscribed"], given["form"]
        requests = [
            self.sign(pull_request(offset, opaque=self.number(), **given)._replace(body=body))
            for offset in offsets
        ]
        if is_forged and self.users:
            requests = map(forged, requests)
        return b"".join(request.encode() for request in requests)

    def sign(self, request):
        """Sign a request if there are users."""
        return request if self.users is None else signed(request, "alice")

    def act_rights(self, rights):
        """Give the user this right, and no other."""
        if self.users is not None:
            self.users.grant("alice", *rights)

    def act_send(self, client, topic, tags, sends=1):
        for _ in range(sends):
            properties = {"TAGS": tags, "a": "2"} if tags else {"KEYS": "k"}
            request = send_request("x" * 90, topic, properties=properties, opaque=self.number())
            self.twins.receive(self.clients[client], self.sign(request).encode())
        self.twins.settle()

    def act_topic(self, perm, queues):
        for twin in self.twins.both:
            topics = twin.controller.tables.topics
            topics.put(replace(topics.get("U"), perm=perm, read_queue_nums=queues))
            topics.save()

    def act_group(self, consume_enable):
        for twin in self.twins.both:
            groups = twin.controller.tables.groups
            groups.put(replace(groups.find_or_create("G"), consume_enable=consume_enable))
            groups.save()

    def act_heartbeat(self, client, text, version, model=MessageModel.CLUSTERING):
        subscriptions = tuple(
            SubscriptionData(
                topic=topic,
                sub_string=text,
                tags_set=frozenset() if text == "*" else frozenset([text]),
                code_set=frozenset() if text == "*" else frozenset([65]),
                sub_version=version,
            )
            for topic in ("T", "U")
        )
        group = ConsumerData(
            group_name="G", subscription_data_set=subscriptions, message_model=model
        )
        body = encode_body(HeartbeatData(client_id="client", consumer_data_set=(group,)))
        request = RemotingCommand(RequestCode.HEART_BEAT, opaque=self.number(), body=body)
        self.twins.receive(self.clients[client], self.sign(request).encode())
        self.twins.settle(self.clients[client], self.numbers)

    def act_pass_ms(self, ms):
        self.twins.pass_ms(ms)
        self.twins.settle()

    def check(self):
        """Check that both brokers have the same answers, holds, commits and counters."""
        fast_path, usual = self.twins.both
        for client in self.clients:
            assert fast_path.said_to(client) == usual.said_to(client)
        for twin in self.twins.both:
            assert twin.controller.hold_service.rescued_total == 0
        assert self._known(fast_path) == self._known(usual)

    @staticmethod
    def _known(twin):
        tables, processors = twin.controller.tables, twin.processors
        offsets = {
            group: {
                topic: dict(tables.offsets.queues(group, topic))
                for topic in tables.offsets.topics_of(group)
            }
            for group in ("G", "H")
        }
        held = twin.controller.hold_service.hold_count
        return (
            offsets,
            held,
            twin.got,
            processors.dispatch.refused,
            processors.stats.got_messages,
            twin.controller.access.failures,
            twin.controller.access.denials,
        )


def story_with(root, *disks, **changed):
    twins = Twins(root, disks or (None, None), **changed)
    is_protected = "authenticationEnabled" in changed
    users = Users(*(twin.controller for twin in twins.both)) if is_protected else None
    for twin in twins.both:
        topics = twin.controller.tables.topics
        for name in ("T", "U"):
            topics.put(TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4))
        topics.save()
    story = Story(twins, users)
    story.act_rights(EVERYTHING)
    return story


@pytest.fixture
def told(tmp_path):
    """Return a function that starts a scenario; its brokers are stopped at the end."""
    yield from begun(partial(story_with, tmp_path))


def pull(*offsets, **given):
    return {
        "offsets": offsets or (0,),
        "topic": "T",
        "subscribed": "all",
        "form": "usual",
        **given,
    }


@pytest.fixture(scope="module", params=["unsigned", "signed"])
def story(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("twins")
    settings = WITH_USERS if request.param == "signed" else {}
    told = story_with(root, mappedFileSizeCommitLog=1 << 20, **settings)
    for topic, tags in ((topic, tags) for topic in "TU" for tags in ("", "A", "B")):
        told.act_send(0, topic, tags, sends=20)
    yield told
    assert told.twins.fast_path.pulled > told.numbers / 40, "few have taken the fast path"
    told.twins.shutdown()


@settings(
    max_examples=count("ROCKETPOLL_LANES", 12, wide=600),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(acts, min_size=1, max_size=9))
def test_fast_pull_is_indistinguishable_from_the_usual_path(story, told):
    story.begin()
    story.act_rights(EVERYTHING)
    story.act_pull(0, [pull(0, 1, 2)], is_cut=False)
    for act in told:
        story.act(*act)
    story.check()
    story.act_pass_ms(2_000)
    assert [twin.controller.hold_service.hold_count for twin in story.twins.both] == [0, 0]
    story.check()


OF_JAVA = (
    b'{"code":11,"extFields":{"queueId":"0","maxMsgNums":"10","sysFlag":"22",'
    b'"commitOffset":"%d","subscription":"*","ReqT":"0","suspendTimeoutMillis":"20000",'
    b'"bname":"bench","topic":"T","queueOffset":"%d","expressionType":"TAG","subVersion":"0",'
    b'"consumerGroup":"readers-2"},"flag":0,"language":"JAVA","opaque":%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":407}'
)
"""The header of a lite pull consumer of 4.9.7, except for its topic and three numbers."""


def test_pulls_of_a_java_consumer_take_the_fast_path(told):
    story = told()
    story.act_send(0, "T", "A", sends=9)
    for offset in range(10):
        header = OF_JAVA % (offset // 2, offset, 44_047 + offset)
        data = struct.pack(">iI", len(header) + 4, len(header)) + header
        story.twins.receive(1, data)
    story.twins.settle()
    assert story.twins.fast_path.pulled == 9
    story.check()


def test_repeated_pull_takes_the_fast_path_however_its_bytes_arrive(told):
    story = told()
    story.act_send(0, "T", "A", sends=9)
    for offsets, by_fast_path in (((0,), 0), ((3,), 1), ((9,), 2), ((1, 2, 4), 5)):
        story.act_pull(1, [pull(*offsets)], is_cut=False)
        assert story.twins.fast_path.pulled == by_fast_path
    story.act_pull(1, [pull(5, 6, 7, 8)], is_cut=True)
    assert story.twins.fast_path.pulled > 6
    assert story.twins.usual.pulled == 0
    story.check()


def test_pull_held_by_the_fast_path_is_woken_and_times_out(told):
    story = told()
    story.act_send(0, "T", "A", sends=3)
    for offset in (0, 3):
        story.act_pull(1, [pull(offset, suspend_ms=2_000)], is_cut=False)
    fast_path = story.twins.fast_path
    assert fast_path.pulled == 1
    assert [twin.controller.hold_service.hold_count for twin in story.twins.both] == [1, 1]
    story.act_send(0, "T", "A")
    assert fast_path.answers(1)[-1].ext_fields["nextBeginOffset"] == "4"
    story.act_pull(1, [pull(4, suspend_ms=2_000)], is_cut=False)
    story.act_pass_ms(1_999)
    assert fast_path.controller.hold_service.hold_count == 1
    story.act_pass_ms(1)
    assert [answer.code for answer in fast_path.answers(1)] == [0, 0, 19]
    story.check()


def test_signed_pulls_take_the_fast_path_and_none_with_a_wrong_signature_does(told):
    story = told(**WITH_USERS)
    story.act_send(0, "T", "A", sends=9)
    for offsets, form in (((0,), "usual"), ((3, 4), "usual"), ((5,), "forged"), ((9,), "usual")):
        story.act_pull(1, [pull(*offsets, form=form)], is_cut=False)
    assert story.twins.fast_path.pulled == 3
    assert [answer.code for answer in story.twins.fast_path.answers(1)] == [0, 0, 0, 16, 19]
    story.check()


@pytest.mark.parametrize("rights", RIGHTS[2:], ids=["no group", "no topic"])
def test_signed_pull_held_by_the_fast_path_is_refused_once_its_user_may_no_longer(told, rights):
    story = told(**WITH_USERS)
    story.act_send(0, "T", "A", sends=3)
    for offset in (0, 3):
        story.act_pull(1, [pull(offset, suspend_ms=2_000)], is_cut=False)
    assert story.twins.fast_path.pulled == 1
    story.act_rights(rights)
    story.act_send(0, "T", "A")
    for twin in story.twins.both:
        assert [answer.code for answer in twin.answers(1)] == [0, 16]
        assert not twin.answers(1)[-1].body
        assert twin.controller.access.denials == 1
    story.act_pull(1, [pull(0)], is_cut=False)
    assert story.twins.fast_path.answers(1)[-1].code == 16
    story.check()


def test_held_pulls_of_a_deleted_user_are_refused_at_their_deadline(told):
    story = told(**WITH_USERS)
    story.act_send(0, "T", "A", sends=3)
    story.act_pull(1, [pull(3, suspend_ms=2_000)], is_cut=False)
    story.users.delete("alice")
    story.act_pass_ms(2_000)
    for twin in story.twins.both:
        (answer,) = twin.answers(1)
        assert (answer.code, answer.remark) == (16, "User:alice is not found.")
    story.check()


def test_topic_and_group_changes_apply_to_the_next_fast_path_pull(told):
    story = told()
    story.act_send(0, "U", "B", sends=3)
    for change, code in (
        (("topic", 2, 4), 16),
        (("topic", 6, 1), 0),
        (("group", False), 16),
        (("group", True), 0),
    ):
        story.act_pull(1, [pull(0, 1, topic="U", queue_id=0)], is_cut=False)
        story.act(*change)
        story.act_pull(1, [pull(2, topic="U", queue_id=0)], is_cut=False)
        assert story.twins.fast_path.answers(1)[-1].code == code
    assert story.twins.fast_path.pulled > 2
    story.check()


def test_fast_pull_uses_the_subscription_of_the_last_heartbeat(told):
    story = told()
    story.act_send(0, "T", "A", sends=3)
    story.act_send(0, "T", "B", sends=3)
    mine = pull(0, subscribed="what heartbeats say")
    found = []
    for text, model in (("A", MessageModel.CLUSTERING), ("*", MessageModel.CLUSTERING)):
        story.act_heartbeat(1, text, 1, model)
        for _ in range(2):
            story.act_pull(1, [mine], is_cut=False)
        found.append(story.twins.fast_path.answers(1)[-1].ext_fields["nextBeginOffset"])
    assert story.twins.fast_path.pulled == 3
    story.act_pull(1, [pull(0, subscribed="what later heartbeats say")], is_cut=False)
    story.check()


def test_disk_error_in_the_pull_fast_path_is_answered_like_the_usual_path(told):
    disks = [FaultyDisk(LocalDisk()), FaultyDisk(LocalDisk())]
    story = told(*disks)
    story.act_send(0, "T", "A", sends=3)
    story.act_pull(1, [pull(0, 1)], is_cut=False)
    for disk in disks:
        disk.plan = [
            FaultIn(directory="commitlog", persistent=True, kinds={"read"}, error=errno.EIO)
        ]
    story.act_pull(1, [pull(0, 1)], is_cut=False)
    for disk in disks:
        disk.plan = ()
    story.act_pull(1, [pull(0, 1)], is_cut=False)
    assert story.twins.fast_path.pulled == 5
    story.check()
