"""The fast path for sends gives the same responses as the slow path, and serves the expected sends.

Clients send anything, cut into arbitrary pieces.
"""

import errno
import struct
import threading
from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.brokers.access import WITH_USERS, Users, forged, signed
from support.brokers.twin_brokers import Twins, begun
from support.clients.remoting_clients import batch_request, pull_request, send_request
from support.disks.faulty_disk import FaultIn, FaultyDisk
from support.suite.selection import count, some

from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import RequestCode, SerializeType
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.auth.plain.plain_accounts import PlainAcl
from rocketpoll.broker.processor.sends.fast_path import cached_send
from rocketpoll.broker.processor.sends.fast_path.fast_send import RUN_BYTES_MAX, RUN_MAX
from rocketpoll.broker.runtime import housekeeping
from rocketpoll.broker.server import fair_scheduler
from rocketpoll.broker.store.files.disk import LocalDisk

TOPICS = "T", "U", "%RETRY%G", "read-only", "not-there", "passing"
TEXTS = {
    "as Java writes them": "UNIQ_KEY\x01{n:032X}\x02WAIT\x01true",
    "as Java wrote them once": "UNIQ_KEY\x01{n:032X}\x02WAIT\x01true\x02",
    "no instruction": "UNIQ_KEY\x01{n:032X}\x02",
    "without a last separator": "UNIQ_KEY\x01{n:032X}",
    "two separators": "KEYS\x01k{n}\x02\x02",
    "tag A": "TAGS\x01A\x02KEYS\x01k{n}\x02WAIT\x01true\x02",
    "tag B": "KEYS\x01k{n} l\x02WAIT\x01true\x02TAGS\x01B",
    "nothing": "",
    "does not wait": "KEYS\x01k{n}\x02WAIT\x01false\x02",
    "waits, with a tag, as Java writes it": "KEYS\x01k{n}\x02WAIT\x01true\x02TAGS\x01A",
    "waits, said first": "WAIT\x01true\x02KEYS\x01k{n}\x02",
    "waits twice": "K\x011\x02WAIT\x01true\x02WAIT\x01true\x02",
    "waits twice, and last": "K\x011\x02WAIT\x01true\x02WAIT\x01true",
    "delayed": "KEYS\x01k{n}\x02DELAY\x0118\x02",
    "a timer": "TIMER_DELAY_SEC\x0112\x02",
    "a half message": "TRAN_MSG\x01true\x02",
    "a cluster": "CLUSTER\x01other\x02KEYS\x01k{n}\x02",
    "not ASCII": "KEYS\x01k{n}\x02name\x01ü\x02",
    "escaped": 'KEYS\x01k{n}\x02said\x01"C:\\u0001"\n\x02',
    "other controls": "KEYS\x01k{n}\x02\x03\x7f\x02",
    "long": "KEYS\x01k{n}\x02x\x01" + "x" * 3_000 + "\x02",
    "too long": "x\x01" + "x" * 33_000,
}
USUAL = ("as Java writes them", "no instruction", "tag A", "tag B", "without a last separator")
SIZES = (1, 100, 5_000, 0, RUN_BYTES_MAX, (1 << 19) + 1)
FORMS = {
    "one way": {"flag": 2},
    "the old code": {"code": RequestCode.SEND_MESSAGE},
    "binary": {"serialize_type": SerializeType.ROCKETMQ},
    "another version": {"version": 401},
    "a remark": {"remark": "?"},
    "flag 8": {"message_flag": 8},
    "used up": {"reconsume_times": 99},
    "forged": {"is_forged": True},
}

sends = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(TOPICS[:2] * 4 + TOPICS + TOPICS[-1:]),
        "queue_id": st.sampled_from([0, 1, 0, 1, 2, 3, 4]),
        "text": st.sampled_from(USUAL * 4 + tuple(TEXTS)),
        "size": st.sampled_from(SIZES[:2] * 6 + SIZES),
        "form": st.sampled_from(["usual"] * 20 + sorted(FORMS)),
        "count": st.sampled_from([1, 1, 2, 9, RUN_MAX + 9]),
    }
)
others = st.sampled_from(["a batch", "a question"])
clients = st.integers(0, 1)
sent_together = st.lists(st.one_of(*[sends] * 6, others), min_size=1, max_size=8)
waits_ms = st.sampled_from([1, 400, 999, 1_000, 1_001, 4_000, 5_000])
acts = st.one_of(
    st.tuples(
        st.just("receive"),
        clients,
        sent_together,
        st.lists(st.integers(0, 1 << 16), max_size=3),
    ),
    st.tuples(
        st.just("stall"),
        st.lists(st.tuples(clients, sent_together, waits_ms), min_size=1, max_size=4),
    ),
    st.tuples(st.just("rights"), st.sampled_from(["Topic:* All", "Topic:T Pub", "Topic:U Pub"])),
    st.sampled_from([("perm", 2), ("perm", 4), ("perm", 6), ("queues", 2), ("delete",), ("pass",)]),
)


class Story:
    """Does the same with both brokers."""

    def __init__(self, twins, users=None):
        self.twins = twins
        self.users = users
        self.numbers = 0

    def request(self, topic="T", queue_id=0, text="as Java writes them", size=100, form="usual"):
        self.numbers += 1
        changed = dict(FORMS.get(form, {}))
        message_flag = changed.pop("message_flag", 0)
        reconsume_times = changed.pop("reconsume_times", None)
        is_forged = changed.pop("is_forged", False)
        request = send_request(
            self.numbers.to_bytes(4, "big") * (size // 4) + bytes(size % 4),
            topic,
            queue_id,
            properties=TEXTS[text]
            .replace("{n:032X}", f"{self.numbers:032X}")
            .replace("{n}", str(self.numbers)),
            opaque=self.numbers,
            **changed,
        )
        fields = {**request.ext_fields}
        if message_flag:
            fields["h"] = str(message_flag)
        if reconsume_times is not None and "j" in fields:
            fields["j"] = str(reconsume_times)
        if "g" in fields:
            fields["g"] = str(1_700_000_000_000 + self.numbers)
        request = self.sign(request._replace(ext_fields=fields))
        return forged(request) if is_forged and self.users else request

    def sign(self, request):
        """Sign a request if there are users."""
        return request if self.users is None else signed(request, "alice")

    def bytes_of(self, what):
        if what == "a batch":
            self.numbers += 1
            return self.sign(batch_request("a", "b", opaque=self.numbers)).encode()
        if isinstance(what, str):
            self.numbers += 1
            request = RemotingCommand(RequestCode.GET_MAX_OFFSET, opaque=self.numbers)
            return self.sign(request).encode()
        times = what["count"] if what["size"] <= 100 else 1
        one = {name: value for name, value in what.items() if name != "count"}
        return b"".join(self.request(**one).encode() for _ in range(times))

    def act(self, name, *given):
        getattr(self, f"act_{name}")(*given)

    def act_receive(self, client, sent, cuts):
        data = b"".join(map(self.bytes_of, sent))
        places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
        pieces = [data[start:end] for start, end in pairwise(places)]
        self.twins.receive(client, *pieces)
        self.settle()

    def act_stall(self, arrivals):
        """Suspend flushes of both disks while sends arrive, and advance the clock after each."""
        for twin in self.twins.both:
            twin.disk.keep_waiting()
        for client, sent, ms in arrivals:
            self.twins.receive(client, b"".join(map(self.bytes_of, sent)))
            self.twins.pass_ms(ms)
        for twin in self.twins.both:
            twin.disk.let_go()
        self.settle()

    def act_perm(self, perm):
        self._configure(lambda old: replace(old, perm=perm))

    def act_queues(self, count):
        self._configure(lambda old: replace(old, read_queue_nums=count, write_queue_nums=count))

    def _configure(self, changed):
        for twin in self.twins.both:
            topics = twin.controller.tables.topics
            topics.put(changed(topics.get("U")))
            topics.save()

    def act_delete(self):
        self.numbers += 1
        fields = {"topic": "passing"}
        request = RemotingCommand(
            RequestCode.DELETE_TOPIC_IN_BROKER, opaque=self.numbers, ext_fields=fields
        )
        self.twins.receive(0, self.sign(request).encode())
        self.twins.settle(0, self.numbers)

    def act_rights(self, right):
        """Give the user this right, and no other."""
        if self.users is not None:
            self.users.grant("alice", right, "Topic:passing All")

    def act_pass(self):
        self.twins.pass_ms(7)

    def settle(self):
        self.twins.settle()

    def check(self):
        """Check that both brokers have the same answers, messages, notifications and counters."""
        fast_path, usual = self.twins.both
        for client in (0, 1):
            assert fast_path.said_to(client) == usual.said_to(client)
        assert fast_path.arrivals == usual.arrivals
        assert fast_path.counted() == usual.counted()
        for key in range(max(self.numbers - 40, 1), self.numbers + 1, 7):
            for topic, text in product(TOPICS[:2], (f"k{key}", f"{key:032X}")):
                assert fast_path.found_by(topic, text) == usual.found_by(topic, text)
        assert fast_path.stored() == usual.stored()
        assert usual.ran == []


def topic(name, perm=6):
    return TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4, perm=perm)


def make_topics(twins):
    for twin in twins.both:
        topics = twin.controller.tables.topics
        for name in ("T", "U"):
            topics.put(topic(name))
        topics.put(topic("read-only", perm=4))
        topics.save()


def story_with(root, *disks, **changed):
    twins = Twins(root, disks or (None, None), **changed)
    make_topics(twins)
    is_protected = "authenticationEnabled" in changed
    users = Users(*(twin.controller for twin in twins.both)) if is_protected else None
    story = Story(twins, users)
    story.act_rights("Topic:* All")
    return story


@pytest.fixture(scope="module", params=["ASYNC_FLUSH", "SYNC_FLUSH", "signed"])
def story(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("twins")
    told = story_with(
        root,
        FaultyDisk(slow="commitlog"),
        FaultyDisk(slow="commitlog"),
        flushDiskType="SYNC_FLUSH" if request.param == "SYNC_FLUSH" else "ASYNC_FLUSH",
        mappedFileSizeCommitLog=1 << 20,
        **(WITH_USERS if request.param == "signed" else {}),
    )
    yield told
    assert sum(told.twins.fast_path.ran) > told.numbers / 20, "few have taken the fast path"
    told.twins.shutdown()


@pytest.fixture
def turns(request, monkeypatch):
    """Make a turn of the loop end after each step, or as usual."""
    if request.param == "of one step":
        for name in ("TURN_SECONDS", "QUEUED_WORK_SECONDS", "SLICE_SECONDS"):
            monkeypatch.setattr(fair_scheduler, name, 0)


@pytest.mark.parametrize("turns", ["as usual", "of one step"], indirect=True)
@pytest.mark.usefixtures("turns")
@settings(
    max_examples=count("ROCKETPOLL_LANES", 6, wide=300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(told=st.lists(acts, min_size=1, max_size=6))
def test_fast_send_is_indistinguishable_from_the_usual_path(story, told):
    story.act_rights("Topic:* All")
    story.act_receive(0, [lone(count=9), lone(topic="U", queue_id=1, count=9)], [])
    for act in told:
        story.act(*act)
    story.check()


@pytest.fixture
def told(tmp_path):
    """Return a function that starts a scenario; its brokers are stopped at the end."""
    yield from begun(partial(story_with, tmp_path))


def lone(**given):
    return {
        "topic": "T",
        "queue_id": 0,
        "text": "tag A",
        "size": 100,
        "form": "usual",
        "count": 1,
        **given,
    }


def many(count, **given):
    return [lone(**given, count=count)]


def say_no(disk, kind, directory, error=errno.EIO):
    """Make a disk fail an operation in a directory."""
    disk.plan = [FaultIn(directory=directory, persistent=True, kinds={kind}, error=error)]


def codes(answers, last):
    return [answer.code for answer in answers[-last:]]


OF_JAVA = (
    b'{"code":310,"extFields":{"a":"load","b":"T","c":"TBW102","d":"4","e":"1","f":"0",'
    b'"g":"1795645196%03d","h":"0",'
    b'"i":"UNIQ_KEY\\u0001FD0000000000000000000000000000027DE630946E0980635FBD0%03d'
    b'\\u0002WAIT\\u0001true","j":"0","k":"false","m":"false","n":"bench"},"flag":0,'
    b'"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":407}'
)
"""The header of a producer of 4.9.7, except for its topic and three numbers."""


def test_sends_of_a_java_producer_take_the_fast_path(told):
    story = told()
    for numbers in (range(1), range(1, 21)):
        headers = [OF_JAVA % (number, number, 4_020 + number) for number in numbers]
        frames = (struct.pack(">iI", len(each) + 5, len(each)) + each + b"x" for each in headers)
        story.twins.receive(0, b"".join(frames))
        story.settle()
    assert story.twins.fast_path.ran == [20]
    story.check()


@pytest.mark.parametrize("text", USUAL)
def test_usual_producer_properties_take_the_fast_send(told, text):
    story = told()
    story.act_receive(0, many(1, text=text), [])
    story.act_receive(0, many(30, text=text), [])
    assert story.twins.fast_path.ran == [30]
    story.check()


def test_signed_sends_take_the_fast_path_and_none_with_a_wrong_signature_does(told):
    story = told(**WITH_USERS)
    story.act_receive(0, many(1), [])
    story.act_receive(0, [*many(20), *many(1, form="forged"), *many(20)], [])
    assert story.twins.fast_path.ran == [20, 20]
    for twin in story.twins.both:
        codes_of = [answer.code for answer in twin.answers(0)]
        assert (codes_of.count(0), codes_of.index(16), len(codes_of)) == (41, 21, 42)
        assert twin.controller.access.failures == 1
    story.check()


def test_signed_sends_leave_the_fast_path_when_their_user_loses_the_right(told):
    story = told(**WITH_USERS)
    story.act_receive(0, many(10), [])
    story.act_receive(0, many(10), [])
    assert sum(story.twins.fast_path.ran) == 19
    story.act_rights("Topic:U Pub")
    story.act_receive(0, many(10), [])
    assert codes(story.twins.fast_path.answers(0), 10) == [16] * 10
    story.act_rights("Topic:T Pub")
    story.act_receive(0, many(10), [])
    assert codes(story.twins.fast_path.answers(0), 10) == [0] * 10
    assert sum(story.twins.fast_path.ran) == 28
    story.check()


def test_signed_send_with_any_changed_byte_is_answered_like_the_usual_path(told):
    """Each client has sent a valid request before; a changed one and a valid one follow."""
    story = told(**WITH_USERS)
    story.users.grant("alice", "Topic:T Pub")
    length = len(story.bytes_of(lone()))
    places = some(range(8, length), "ROCKETPOLL_CHANGED_BYTES", 60)
    for client, place in enumerate(places):
        changed = bytearray(story.bytes_of(lone()))
        changed[place] = changed[place] ^ 1 if place % 3 else ord('"')
        sound = [story.bytes_of(lone()) for _ in range(3)]
        story.twins.receive(client, *sound[:2], bytes(changed), sound[2])
    story.settle()
    for client in range(len(places)):
        assert story.twins.fast_path.said_to(client) == story.twins.usual.said_to(client)
    assert story.twins.fast_path.alone >= len(places)
    story.check()


OF_SIGNED_JAVA = (
    b'{"code":310,"extFields":{"a":"load","b":"T","c":"TBW102","Signature":"%b","d":"4","e":"1",'
    b'"f":"0","g":"%d","h":"0","i":"%b","j":"0","k":"false","AccessKey":"alice","m":"false",'
    b'"n":"bench"},"flag":0,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON",'
    b'"version":407}'
)
"""The header of a producer of 4.9.7 whose fields are in the order of a HashMap."""


def test_signed_sends_of_a_java_producer_take_the_fast_path(told):
    story = told(**WITH_USERS)
    same = {"a": "load", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "h": "0", "j": "0"}
    frames = []
    for number in range(21):
        born, key = 1_795_645_196_000 + number, f"{number:032X}"
        text = f"UNIQ_KEY\x01{key}\x02WAIT\x01true"
        fields = {**same, "g": str(born), "i": text, "k": "false", "m": "false", "n": "bench"}
        request = signed(
            RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=b"x"), "alice"
        )
        escaped = text.replace("\x01", "\\u0001").replace("\x02", "\\u0002").encode()
        signature = request.ext_fields["Signature"].encode()
        header = OF_SIGNED_JAVA % (signature, born, escaped, 4_020 + number)
        frames.append(struct.pack(">iI", len(header) + 5, len(header)) + header + b"x")
    story.twins.receive(0, frames[0])
    story.settle()
    story.twins.receive(0, b"".join(frames[1:]))
    story.settle()
    assert story.twins.fast_path.ran == [20]
    assert [answer.code for answer in story.twins.fast_path.answers(0)] == [0] * 21
    story.check()


def test_unsigned_sends_take_the_fast_path_as_long_as_their_address_is_white(told, tmp_path):
    file = tmp_path / "plain_acl.yml"
    file.write_text("globalWhiteRemoteAddresses:\n  - 10.0.0.9\n")
    story = told(aclEnable=True, plainAclFile=file)
    story.act_receive(0, many(1), [])
    story.act_receive(0, many(20), [])
    assert story.twins.fast_path.ran == [20]
    for twin in story.twins.both:
        twin.controller.access._rules.use(PlainAcl.parse([]))
    story.act_receive(0, many(20), [])
    for twin in story.twins.both:
        assert codes(twin.answers(0), 20) == [1] * 20
        assert "No accessKey is configured" in twin.answers(0)[-1].remark
    assert story.twins.fast_path.ran == [20]
    story.check()


@pytest.mark.parametrize("form", ["usual", "used up"])
def test_sends_to_retry_topic_avoid_the_fast_path(told, form):
    story = told()
    for _ in range(3):
        story.act_receive(0, many(9, topic="%RETRY%G", form=form), [])
    assert (story.twins.fast_path.ran, story.twins.fast_path.alone) == ([], 0)
    story.check()


def test_fast_send_batches_requests_of_one_read_at_any_cut(told):
    story = told()
    ran = story.twins.fast_path.ran
    story.act_receive(0, many(1), [])
    assert story.twins.fast_path.alone == 0  # the next ones can use its plan
    story.act_receive(0, many(1), [])
    assert (ran, story.twins.fast_path.alone) == ([], 1)  # a single send is no batch
    story.act_receive(0, many(2 * RUN_MAX + 5), [])
    assert ran == [RUN_MAX, RUN_MAX, 5]
    del ran[:]
    length = len(story.bytes_of(lone(count=20)))
    for cut in range(1, length, length // 7):
        story.act_receive(0, many(20), [cut])
    assert sum(ran) > 7 * 18
    story.check()


def test_sends_in_a_run_wake_pulls_waiting_for_a_tag(told):
    story = told()
    story.act_receive(0, many(3), [])
    for twin in story.twins.both:
        for opaque, tags in ((9_001, "B"), (9_002, "C")):
            pull = pull_request(3, subscription=tags, suspend_ms=15_000, opaque=opaque)
            twin.receive(1, pull.encode())
    story.act_receive(0, [*many(5), *many(5, text="tag B")], [])
    assert sum(story.twins.fast_path.ran) > 8
    for twin in story.twins.both:
        (woken,) = twin.answers(1)
        assert (woken.opaque, woken.code) == (9_001, 0)
        assert woken.ext_fields["nextBeginOffset"] == "13"
    assert set(story.twins.fast_path.arrivals["T", 0]) == set(story.twins.usual.arrivals["T", 0])
    assert len(set(story.twins.fast_path.arrivals["T", 0])) == 2


def test_send_run_refused_by_the_disk_leaves_no_trace(told):
    disks = [FaultyDisk(LocalDisk()), FaultyDisk(LocalDisk())]
    story = told(*disks)
    story.act_receive(0, many(10), [])
    for disk in disks:
        say_no(disk, "write", "commitlog", errno.ENOSPC)
    story.act_receive(0, many(20), [])
    for twin in story.twins.both:
        answers = twin.answers(0)
        assert codes(answers, 20) == [14] * 20
        assert "full" in answers[-1].remark
    for disk in disks:
        disk.plan = ()
    story.act_receive(0, many(20), [])
    assert codes(story.twins.fast_path.answers(0), 20) == [0] * 20
    assert story.twins.fast_path.ran == [9, 20, 20]
    story.check()


def test_send_run_with_a_failed_flush_is_not_acknowledged(told):
    disks = [FaultyDisk(LocalDisk()), FaultyDisk(LocalDisk())]
    story = told(*disks, flushDiskType="SYNC_FLUSH")
    story.act_receive(0, many(10), [])
    for disk in disks:
        say_no(disk, "flush", "commitlog")
    story.act_receive(0, many(20), [])
    story.act_receive(0, many(20), [])
    fast_path, usual = story.twins.both
    assert codes(fast_path.answers(0), 40) == codes(usual.answers(0), 40) == [14] * 40
    assert [answer.ext_fields for answer in fast_path.answers(0)] == [
        answer.ext_fields for answer in usual.answers(0)
    ]
    assert fast_path.arrivals == usual.arrivals
    assert sum(map(len, fast_path.arrivals.values())) == 10


def test_fast_send_run_is_answered_per_flush_and_counted_per_send(told):
    disks = [FaultyDisk(slow="commitlog"), FaultyDisk(slow="commitlog")]
    changed = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 300}
    story = told(*disks, sendThreadPoolQueueCapacity=25, **changed)
    story.act_receive(0, many(10), [])
    for disk in disks:
        disk.keep_waiting()
    for twin in story.twins.both:
        story.numbers = 100
        twin.receive(0, story.bytes_of(lone(count=30)))
        assert len(twin.answers(0)) == 10
        assert twin.processors.acknowledger.queue()[0] == 30
        twin.receive(0, story.bytes_of(lone(count=5)))
        assert codes(twin.answers(0), 5) == [2] * 5
        assert "30 sends wait for the disk" in twin.answers(0)[-1].remark
    story.twins.pass_ms(299)
    assert [len(twin.answers(0)) for twin in story.twins.both] == [15, 15]
    story.twins.pass_ms(1)
    for twin, disk in zip(story.twins.both, disks, strict=True):
        assert codes(twin.answers(0), 35) == [10] * 30 + [2] * 5
        assert {"msgId", "queueOffset"} <= twin.answers(0)[-6].ext_fields.keys()
        disk.let_go()
    story.act_receive(0, many(20), [])
    assert story.twins.fast_path.ran == [9, 30, 20]
    story.check()


@pytest.mark.parametrize("slow", [0, 1], ids=["the fast path's is slow", "the usual one's is slow"])
def test_twins_with_different_disk_delays_differ_by_known_answers(told, slow):
    """On a busy machine the clocks of the two brokers differ; the test must not report that as a
    difference of the paths."""
    disks = [FaultyDisk(slow="commitlog"), FaultyDisk(slow="commitlog")]
    story = told(*disks, flushDiskType="SYNC_FLUSH")
    story.act_receive(0, many(10), [])
    disks[slow].keep_waiting()
    late, quick = (story.twins.both[number] for number in (slow, 1 - slow))
    for sent, passes_ms, answered in (
        (20, 1_000, []),
        (7, 1, []),  # a second is not too long (osPageCacheBusyTimeOutMills)
        (5, 3_998, [2] * 5),
        (5, 1, [10] * 20 + [2] * 10),  # the first have waited for five (syncFlushTimeout)
        (9, 1_000, [10] * 27 + [2] * 19),
    ):
        story.twins.receive(0, story.bytes_of(lone(count=sent)))
        quick.settle()
        story.twins.pass_ms(passes_ms)
        assert codes(late.answers(0), 99) == [0] * 10 + answered
        assert {answer.code for answer in quick.answers(0)} == {0}
    assert {answer.remark for answer in late.answers(0) if answer.code == 2} == {
        f"[PCBUSY_CLEAN_QUEUE]broker busy, the disk has kept a send waiting for {seconds} s"
        for seconds in ("1.0", "5.0", "4.0")
    }
    disks[slow].let_go()
    late.settle()  # flush the late messages and make them visible
    assert len(late.arrivals["T", 0]) == 37
    assert len(quick.arrivals["T", 0]) == 56


def test_twin_brokers_name_index_files_alike_despite_thread_timing(told):
    """Index files are named by the clock, so no thread may create one while the clock moves."""
    story = told()
    # more keys than fit into an index file; none is indexed yet
    story.act_receive(0, many(300), [])
    usual = story.twins.usual.controller.housekeeping
    may_go_on = threading.Event()
    for _ in range(housekeeping._STORE_JOBS):
        usual._store_pool.submit(may_go_on.wait)
    story.twins.pass_ms(60_000)  # a checkpoint is due, for which the index catches up
    story.twins.fast_path.wait_for_jobs()
    story.twins.pass_ms(1_000)
    may_go_on.set()
    story.twins.usual.wait_for_jobs()
    story.check()


def test_fast_send_checks_a_changed_topic_again(told):
    story = told()
    for change, code in ((("perm", 4), 16), (("perm", 6), 0), (("queues", 2), 1)):
        story.act_receive(0, many(5, topic="U", queue_id=3), [])
        story.act(*change)
        story.act_receive(0, many(5, topic="U", queue_id=3), [])
        assert codes(story.twins.fast_path.answers(0), 5) == [code] * 5
    story.check()


def test_oneway_sends_take_the_fast_path_without_answers(told):
    story = told()
    story.act_receive(0, many(20, form="one way"), [])
    assert story.twins.fast_path.ran == [19]
    assert story.twins.fast_path.answers(0) == []
    story.check()


def test_fast_send_stops_reading_a_congested_client(told):
    story = told(maxWriteBufferBytes=1 << 16)
    story.act_receive(0, many(3), [])
    for twin in story.twins.both:
        twin.wire(0).is_full = True
    data = story.bytes_of(lone(count=400))
    for twin in story.twins.both:
        for _ in range(8):
            twin.receive(0, data)
    for twin in story.twins.both:
        assert twin.connection(0).is_congested
        assert len(twin.answers(0)) == twin.counted()[0] < 2 * 400
        twin.wire(0).is_full = False
        twin.connection(0).resume_writing()
        twin.settle(0, story.numbers)
        assert len(twin.answers(0)) == 8 * 400 + 3


def test_cached_sends_are_discarded_with_their_connection(told):
    story = told()
    for queue_id in range(4):
        story.act_receive(0, many(3, queue_id=queue_id), [])
    plans = story.twins.fast_path.processors.sends._cache
    assert len(plans) == 8
    story.twins.fast_path.wire(0).protocol.connection_lost(None)
    assert len(plans) == 0
    del story.twins.fast_path._wires[0]


def test_send_cache_of_never_repeated_headers_stays_bounded(told, monkeypatch):
    lessons = []
    shape_of = cached_send.build_template
    monkeypatch.setattr(
        cached_send, "build_template", lambda *given: lessons.append(1) or shape_of(*given)
    )
    monkeypatch.setattr(cached_send, "CACHED_SENDS_MAX", 64)
    story = told()
    for number in range(2 * cached_send.CACHED_SENDS_MAX):
        odd = story.request()
        odd = odd._replace(ext_fields={"a0": str(number), **odd.ext_fields})
        story.twins.fast_path.receive(0, odd.encode())
    assert len(lessons) <= cached_send.CACHED_SENDS_MAX
    plans = story.twins.fast_path.processors.sends._cache
    assert len(plans) <= cached_send.CACHED_SENDS_MAX + 1


def test_unusual_messages_in_a_fast_send_run_are_stored_as_if_alone(told):
    story = told()
    for _ in range(2):
        mixed = [each for text in TEXTS for each in (*many(3), *many(2, text=text), *many(1))]
        story.act_receive(0, mixed, [])
    story.act_receive(0, [each for size in SIZES for each in (*many(5), lone(size=size))], [])
    story.act_receive(0, [each for form in FORMS for each in (*many(5), *many(3, form=form))], [])
    assert len(story.twins.fast_path.ran) + story.twins.fast_path.alone > 2 * len(TEXTS)
    story.check()
