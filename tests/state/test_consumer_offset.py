"""Committed offsets of groups, in memory and on disk."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.brokers.state_tables import offsets_in

from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.configs import ConsumerOffsetSerializeWrapper
from rocketpoll.broker.state.tables.consumer_offset import ConsumerOffsetManager
from rocketpoll.broker.state.tables.table import TooMany


@pytest.fixture
def offsets(tmp_path):
    return offsets_in(tmp_path)


def test_commit_may_lower_an_offset_and_a_pull_may_not(offsets):
    """R23: an older offset that arrived late overwrote a newer one."""
    offsets.commit("g", "T", 0, 10)
    offsets.advance("g", "T", 0, 7)
    assert offsets.query("g", "T", 0) == 10
    offsets.advance("g", "T", 0, 11)
    assert offsets.query("g", "T", 0) == 11
    offsets.commit("g", "T", 0, 3)
    assert offsets.query("g", "T", 0) == 3


def test_first_pulled_offset_is_stored_even_if_0(offsets):
    offsets.advance("g", "T", 0, 0)
    assert offsets.query("g", "T", 0) == 0


def test_cloned_group_offsets_change_independently(offsets):
    offsets.commit("g", "T", 0, 5)
    offsets.commit("h", "T", 3, 9)
    offsets.clone("g", "h", "T")
    assert offsets.queues("h", "T") == {0: 5}
    offsets.commit("h", "T", 0, 6)
    assert offsets.query("g", "T", 0) == 5
    offsets.clone("nobody", "h", "T")
    assert offsets.queues("h", "T") == {0: 6}


def test_forget_group_and_forget_topic_remove_all_their_offsets(offsets):
    for group in "gh":
        for topic in "TU":
            offsets.commit(group, topic, 0, 1)
    offsets.discard_group("g")
    assert offsets.topics_of("g") == frozenset()
    offsets.discard_topic("T")
    assert offsets.topics_of("h") == {"U"}
    offsets.discard_topic("U")
    assert offsets.wrapper().offset_table == {}


def test_offsets_are_there_again_after_a_restart(tmp_path, offsets):
    offsets.commit("g", "%RETRY%g", 0, 5)
    offsets.commit("g", "T", 3, (1 << 63) - 1)
    offsets.save()
    again = offsets_in(tmp_path)
    assert again.wrapper() == offsets.wrapper()
    assert again.query("g", "T", 3) == (1 << 63) - 1
    assert not again.is_dirty


@pytest.mark.parametrize("forget", ["discard_topic", "discard_group"])
def test_forgotten_offsets_stay_forgotten_after_restart(tmp_path, offsets, forget):
    offsets.commit("both", "both", 0, 5)
    offsets.commit("other", "other", 0, 5)
    offsets.save()
    getattr(offsets, forget)("both")
    assert offsets.is_dirty
    offsets.save()
    assert offsets_in(tmp_path).wrapper().offset_table == {"other@other": {0: 5}}


def test_rocketmqs_consumer_offset_file_is_loaded(tmp_path):
    """Keys are unquoted numbers; entries that are no topic@group, which RocketMQ
    ignores, are kept."""
    (tmp_path / "consumerOffset.json").write_text(
        '{\n\t"dataVersion":{"counter":4,"stateVersion":0,"timestamp":9},\n\t"offsetTable":{'
        '"T@g":{0:12,1:13\n\t\t},"%RETRY%g@g":{0:3},"strange":{0:1},"a@b@c":{0:2}\n\t}\n}'
    )
    offsets = offsets_in(tmp_path)
    assert offsets.queues("g", "T") == {0: 12, 1: 13}
    assert offsets.topics_of("g") == {"T", "%RETRY%g"}
    offsets.commit("g", "T", 0, 20)
    offsets.save()
    wrapper = offsets_in(tmp_path).wrapper()
    assert wrapper.offset_table["strange"] == {0: 1}
    assert wrapper.offset_table["a@b@c"] == {0: 2}
    assert wrapper.data_version.counter == 4


def test_consumer_offset_view_is_read_only_and_its_wrapper_a_copy(offsets):
    offsets.commit("g", "T", 0, 5)
    wrapper = offsets.wrapper()
    with pytest.raises(TypeError):
        offsets.queues("g", "T")[0] = 1
    offsets.commit("g", "T", 0, 6)
    assert wrapper.offset_table == {"T@g": {0: 5}}


class Memory:
    """A table that keeps its text in memory."""

    def __init__(self):
        self.text = None

    def load(self, default):
        return (
            default if self.text is None else decode_body(ConsumerOffsetSerializeWrapper, self.text)
        )

    def save(self, value):
        self.text = encode_body(value)


class OffsetMachine(RuleBasedStateMachine):
    """Compares offsets with a dict, over restarts; there is room for eight."""

    offsets_max = 8
    groups = st.sampled_from(["g", "h", "%RETRY%"])
    topics = st.sampled_from(["T", "U", "%RETRY%g"])
    queue_ids = st.integers(0, 2)
    numbers = st.integers(0, 5)

    def __init__(self):
        super().__init__()
        self.table = Memory()
        self.offsets = ConsumerOffsetManager(self.table, max_offsets=self.offsets_max)
        self.model = {}
        self.saved = {}

    @rule(group=groups, topic=topics, queue_id=queue_ids, number=numbers)
    def commit(self, group, topic, queue_id, number):
        after = {**self.model, (group, topic, queue_id): number}
        self.change(after, lambda: self.offsets.commit(group, topic, queue_id, number))

    @rule(group=groups, topic=topics, queue_id=queue_ids, number=st.integers(-2, 5))
    def advance(self, group, topic, queue_id, number):
        key = (group, topic, queue_id)
        more = {key: max(number, self.model.get(key, 0))} if number >= 0 else {}
        self.change(
            {**self.model, **more}, lambda: self.offsets.advance(group, topic, queue_id, number)
        )

    @rule(source=groups, group=groups, topic=topics)
    def clone(self, source, group, topic):
        found = {key[2]: number for key, number in self.model.items() if key[:2] == (source, topic)}
        after = self.model
        if found:
            after = {key: number for key, number in self.model.items() if key[:2] != (group, topic)}
            after |= {(group, topic, queue_id): number for queue_id, number in found.items()}
        self.change(after, lambda: self.offsets.clone(source, group, topic))

    def change(self, after, act):
        """Make a change, which is refused without effect if there is no room."""
        if len(self.model) < len(after) > self.offsets_max:
            with pytest.raises(
                TooMany, match=r"consumer offsets already, .* \(maxConsumerOffsets=8\)"
            ):
                act()
        else:
            act()
            self.model = after

    @rule(group=groups)
    def discard_group(self, group):
        self.offsets.discard_group(group)
        self.model = {key: number for key, number in self.model.items() if key[0] != group}

    @rule(topic=topics)
    def discard_topic(self, topic):
        self.offsets.discard_topic(topic)
        self.model = {key: number for key, number in self.model.items() if key[1] != topic}

    @rule()
    def save(self):
        self.offsets.save()
        self.saved = dict(self.model)

    @rule()
    def restart(self):
        self.offsets = ConsumerOffsetManager(self.table, max_offsets=self.offsets_max)
        self.model = dict(self.saved)

    @invariant()
    def both_say_the_same(self):
        wrapper = self.offsets.wrapper().offset_table
        assert {
            (key.partition("@")[2], key.partition("@")[0], queue_id): number
            for key, queues in wrapper.items()
            for queue_id, number in queues.items()
        } == self.model
        assert self.offsets.count == len(self.model)
        for group, topic, queue_id in self.model:
            assert self.offsets.query(group, topic, queue_id) == self.model[group, topic, queue_id]
            assert topic in self.offsets.topics_of(group)
            assert group in self.offsets.groups_of(topic)
        if not self.offsets.is_dirty:
            assert self.model == self.saved


OffsetMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestOffsets = OffsetMachine.TestCase


def test_clamp_reduces_only_offsets_past_their_queue_ends(tmp_path):
    offsets = offsets_in(tmp_path)
    for group, topic, queue_id, queue_offset in (
        ("G", "T", 0, 5),
        ("G", "T", 1, 9),
        ("H", "U", 0, 4),
    ):
        offsets.commit(group, topic, queue_id, queue_offset)
    offsets.save()
    ends = {("T", 0): 5, ("T", 1): 7, ("U", 0): 0}
    assert offsets.clamp(lambda *queue: ends[queue]) == {"T": 1, "U": 1}
    assert dict(offsets.queues("G", "T")) == {0: 5, 1: 7}
    assert offsets.query("H", "U", 0) == 0
    assert offsets.is_dirty
    offsets.save()
    assert offsets.clamp(lambda *queue: ends[queue]) == {}
    assert not offsets.is_dirty
