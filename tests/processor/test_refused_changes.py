"""Concurrent changes by several clients, which the disk accepts or refuses in any order.

The table always holds, for each name, the last requested value that was not refused.
"""

import errno
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.brokers.admin_processors import AdminRoom

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.configs import (
    ConsumerOffsetSerializeWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.processor.request import RequestRejected
from rocketpoll.broker.state.tables.kv_config import KVConfigSerializeWrapper


class Aside:
    """The saving thread, run by the test: a job, and then its callback in the broker's thread."""

    def __init__(self, room):
        self._room = room
        self._jobs = []
        self._ends = []
        room.after_saving._run_in_thread = lambda job, then: self._jobs.append((job, then))

    @property
    def is_idle(self):
        return not self._jobs and not self._ends

    def work(self, *refused):
        """Do the next job, on a disk that refuses these files."""
        if self._jobs:
            job, then = self._jobs.pop(0)
            self._room.disk.refuse(*refused)
            try:
                job()
                self._ends.append((then, None))
            except OSError as error:
                self._ends.append((then, error))
            finally:
                self._room.disk.refuse()

    def tell(self):
        if self._ends:
            then, error = self._ends.pop(0)
            then(error)

    def finish(self, *refused):
        while not self.is_idle:
            self.work(*refused)
            self.tell()


class Kind:
    """One of the tables, as clients change and read it."""

    def __init__(self, file, names, put, delete, look, saved):
        self.file, self.names = file, names
        self.put, self.delete = put, delete
        self.look, self.saved = look, saved


def put_topic(name, value):
    fields = {"topic": name, "readQueueNums": value, "writeQueueNums": value, "perm": 6}
    usual = {
        "defaultTopic": "TBW102",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    fields = {key: str(field) for key, field in {**usual, **fields}.items()}
    return RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields)


def put_group(name, value):
    body = encode_body(SubscriptionGroupConfig(group_name=name, retry_max_times=value))
    return RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


def delete_group(name, **fields):
    return RemotingCommand(
        RequestCode.DELETE_SUBSCRIPTIONGROUP, ext_fields={"groupName": name, **fields}
    )


def put_text(name, value):
    fields = {"namespace": "N", "key": name, "value": str(value)}
    return RemotingCommand(RequestCode.PUT_KV_CONFIG, ext_fields=fields)


def delete_text(name):
    return RemotingCommand(RequestCode.DELETE_KV_CONFIG, ext_fields={"namespace": "N", "key": name})


def saved_topics(room):
    table = room.saved("topics.json", TopicConfigSerializeWrapper).topic_config_table
    return {name: config.read_queue_nums for name, config in table.items()}


def saved_groups(room):
    table = room.saved("subscriptionGroup.json", SubscriptionGroupWrapper).subscription_group_table
    return {name: config.retry_max_times for name, config in table.items()}


def saved_texts(room):
    saved = room.saved("kvConfig.json", KVConfigSerializeWrapper)
    return (
        {name: int(value) for name, value in saved.config_table.get("N", {}).items()}
        if saved
        else {}
    )


KINDS = (
    Kind(
        "topics.json",
        ("T", "New"),
        put_topic,
        None,
        lambda room, name: getattr(room.topics.get(name), "read_queue_nums", None),
        saved_topics,
    ),
    Kind(
        "subscriptionGroup.json",
        ("G", "New"),
        put_group,
        delete_group,
        lambda room, name: getattr(room.groups.get(name), "retry_max_times", None),
        saved_groups,
    ),
    Kind(
        "kvConfig.json",
        ("k", "new"),
        put_text,
        delete_text,
        lambda room, name: int(room.kv_configs.get(("N", name)) or 0) or None,
        saved_texts,
    ),
)


class Clients:
    """The changes requested of a table, their outcomes, and the expected content."""

    def __init__(self, room, kind):
        self._room, self._kind = room, kind
        self.aside = Aside(room)
        self._asked = {}
        """Requested value by opaque and name."""
        self._is_refused = {}

    def ask(self, name, value):
        opaque = len(self._asked) + 1
        request = self._kind.put(name, value) if value else self._kind.delete(name)
        request = RemotingCommand(
            request.code, opaque=opaque, ext_fields=request.ext_fields, body=request.body
        )
        self._asked[opaque] = (name, value or None)
        try:
            self._room.handlers[request.code](self._room.connection, request)
        except RequestRejected:
            self._is_refused[opaque] = True

    def hear(self):
        for answer in self._room.connection.sent:
            self._is_refused[answer.opaque] = answer.code != ResponseCode.SUCCESS
        self._room.connection.sent.clear()

    def expected(self, name):
        left = [
            value
            for opaque, (asked, value) in self._asked.items()
            if asked == name and not self._is_refused.get(opaque, False)
        ]
        return left[-1] if left else None

    def check(self):
        self.aside.finish()
        self.hear()
        assert len(self._is_refused) == len(self._asked)
        self._room.topics.save()
        self._room.groups.save()
        self._room.kv_configs.save()
        for name in self._kind.names:
            there, on_disk = (
                self._kind.look(self._room, name),
                self._kind.saved(self._room).get(name),
            )
            assert (there, on_disk) == (self.expected(name),) * 2


@pytest.fixture(params=KINDS, ids=lambda kind: kind.file)
def kind(request):
    return request.param


def test_two_refused_changes_of_one_name_are_both_rolled_back(room, kind):
    clients = Clients(room, kind)
    known, new = kind.names
    clients.ask(known, 2)
    clients.check()
    for name in kind.names:
        clients.ask(name, 5)
        clients.ask(name, 6)
    clients.aside.finish(kind.file)
    assert (kind.look(room, known), kind.look(room, new)) == (2, None)
    clients.check()
    assert (kind.look(room, known), kind.look(room, new)) == (2, None)


def test_accepted_change_survives_an_equal_refused_one(room, kind):
    clients = Clients(room, kind)
    name = kind.names[0]
    clients.ask(name, 5)
    clients.ask(name, 5)
    clients.aside.work(kind.file)
    clients.aside.tell()
    clients.check()
    assert kind.look(room, name) == 5


def test_changes_during_a_save_share_the_next_save(room, kind):
    """Sixteen clients that create topics at the same time wait for two saves, not for sixteen."""
    clients = Clients(room, kind)
    name, other = kind.names
    for value in range(2, 18):
        clients.ask(other if value % 2 else name, value)
    saves = 0
    while not clients.aside.is_idle:
        clients.aside.work()
        clients.aside.tell()
        saves += 1
    assert saves == 2
    clients.check()
    assert (kind.look(room, name), kind.look(room, other)) == (16, 17)


def test_changes_after_a_refused_save_are_saved_by_the_next(room, kind):
    clients = Clients(room, kind)
    name, other = kind.names
    clients.ask(name, 2)
    clients.ask(other, 3)
    clients.aside.work(kind.file)
    clients.aside.tell()
    clients.check()
    assert (kind.look(room, name), kind.look(room, other)) == (None, 3)


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 1), st.integers(0, 3)),
        st.tuples(st.just("save"), st.booleans()),
        st.tuples(st.just("tell")),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), _steps)
def test_table_matches_successful_changes_in_any_order_of_refusals(kind, steps):
    with tempfile.TemporaryDirectory() as directory:
        room = AdminRoom(Path(directory))
        clients = Clients(room, kind)
        for what, *details in steps:
            if what == "ask" and (details[1] or kind.delete):
                clients.ask(kind.names[details[0]], details[1])
            elif what == "save":
                clients.aside.work(*[kind.file] * details[0])
            elif what == "tell":
                clients.aside.tell()
                clients.hear()
        clients.check()
        room.shutdown()


def test_failed_save_is_overwritten_before_the_answer(room, kind, monkeypatch):
    """The renamed table must not survive, because a kill after the failed flush would load it."""
    clients = Clients(room, kind)
    name = kind.names[0]
    clients.ask(name, 2)
    clients.check()
    clients.ask(name, 5)
    with monkeypatch.context() as broken:
        broken.setattr(room.disk, "flush_directory", failing)
        clients.aside.work()
    clients.aside.finish()
    assert [answer.code for answer in room.connection.sent] == [ResponseCode.SYSTEM_ERROR]
    assert kind.saved(room)[name] == 2


def test_rolled_back_change_does_not_revive_a_deleted_topic(room):
    room.create_topic("T", queue_nums=2)
    with room.topics.changes.begin() as change:
        room.topics.put(room.topics.get("T"), change)
    room.topics.begin_deletion("T")
    room.topics.delete("T")
    change.rollback()
    assert room.topics.get("T") is None


# ---- groups that are being deleted


@pytest.mark.parametrize("file", ["subscriptionGroup.json", "consumerOffset.json"])
def test_offsets_on_disk_live_as_long_as_their_group(room, file):
    """A kill after a refused deletion must not find a group without its offsets, which would skip
    messages."""
    room.groups.put(SubscriptionGroupConfig(group_name="G", retry_max_times=3))
    room.offsets.commit("G", "T", 0, 7)
    room.groups.save()
    room.offsets.save()
    aside = Aside(room)
    request = delete_group("G", removeOffset="true")
    room.handlers[request.code](room.connection, request)
    while not aside.is_idle:
        aside.work(file)
        saved = room.saved("consumerOffset.json", ConsumerOffsetSerializeWrapper).offset_table
        assert saved == {"T@G": {0: 7}}
        aside.tell()
    is_kept = file == "subscriptionGroup.json"
    assert room.offsets.query("G", "T", 0) == (7 if is_kept else None)
    assert ("G" in saved_groups(room)) == is_kept == (room.groups.get("G") is not None)
    (answer,) = room.connection.sent
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert ("the group G is deleted" in answer.remark) == (not is_kept)


def test_members_find_a_group_as_it_is_until_its_deletion_is_decided(room):
    """Otherwise a pull would create it again with defaults, and a refused deletion could not
    restore it."""
    before = SubscriptionGroupConfig(group_name="G", consume_enable=False, retry_max_times=3)
    room.groups.put(before)
    room.groups.save()
    aside = Aside(room)
    for refused in ("subscriptionGroup.json",), ():
        request = delete_group("G")
        room.handlers[request.code](room.connection, request)
        assert room.groups.find_or_create("G") is before
        for other in (request, put_group("G", 5)):
            with pytest.raises(RequestRejected, match="is being deleted"):
                room.handlers[other.code](room.connection, other)
        aside.work(*refused)
        assert room.groups.find_or_create("G") is before
        aside.finish(*refused)
        if refused:
            assert room.groups.get("G") is before
            assert saved_groups(room)["G"] == 3
    assert room.groups.get("G") is None
    assert "G" not in saved_groups(room)
    assert room.groups.find_or_create("G") == SubscriptionGroupConfig(group_name="G")


def failing(*_):
    raise OSError(errno.EIO, "the disk says no")
