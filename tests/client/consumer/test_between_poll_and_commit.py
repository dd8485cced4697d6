"""Between a poll and its commit, no event commits unreturned messages or moves another member's
offset back."""

import pytest
from support.brokers.broker_kinds import wait_until
from support.brokers.clusters import FIRST
from support.clients.fake_members import implementation_of

from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.settings import LitePullSettings
from rmq_spark.client.errors import ClientError

BODIES = [str(number) for number in range(6)]
POLLED = 2
PATIENCE_S = 30


class Member:
    """A member that commits on demand."""

    def __init__(self, cluster, group, topic, name):
        settings = LitePullSettings(
            consume_from_where=FIRST,
            auto_commit=False,
            pull_batch_size=1,
            rebalance_interval_ms=500,
        )
        self.consumer = LitePullConsumer(
            group, instance=cluster.instance(client_id=f"{name}-{group}"), settings=settings
        )
        self.consumer.subscribe(topic)
        self.consumer.start()
        cluster.until_end(self.consumer)

    def polled(self, count):
        found = []

        def has_enough():
            found.extend(each.body.decode() for each in self.consumer.poll(200))
            return len(found) >= count

        wait_until(f"{count} messages", has_enough, PATIENCE_S)
        return found


class Scene:
    """A topic of one queue, and a member that has polled two of its messages."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.topic, self.group = cluster.topic(queues=1), cluster.group()
        self.queue = cluster.queue(self.topic)
        cluster.send(self.topic, *BODIES, queue_id=0)
        self.member = Member(cluster, self.group, self.topic, "b")
        assert self.member.polled(POLLED) == BODIES[:POLLED]
        self.consumer = self.member.consumer

    def joins(self):
        """Let a second member take over the queue; its name sorts first."""
        other = Member(self.cluster, self.group, self.topic, "a")
        wait_until("it has the queue", other.consumer.assignment, PATIENCE_S)
        wait_until("the first has it no more", lambda: not self.consumer.assignment(), PATIENCE_S)
        return other

    @property
    def stored(self):
        try:
            return self.cluster.stored_offset(self.group, self.topic)
        except ClientError:
            return None  # there is no file yet

    def commit(self):
        self.consumer.commit()


def nothing(scene):
    return POLLED


def seeks_back(scene):
    scene.consumer.seek(scene.queue, 1)
    return 1


def seeks_back_and_polls(scene):
    scene.consumer.seek(scene.queue, 0)
    assert scene.member.polled(1) == BODIES[:1]
    return 1


def seeks_on(scene):
    scene.consumer.seek(scene.queue, 4)
    return 4


def seeks_to_its_end_and_back(scene):
    scene.consumer.seek_to_end(scene.queue)
    scene.consumer.seek(scene.queue, POLLED)
    return POLLED


def pauses(scene):
    scene.consumer.pause([scene.queue])
    assert scene.consumer.poll(300) == []
    return POLLED


def pauses_seeks_and_resumes(scene):
    scene.consumer.pause([scene.queue])
    scene.consumer.seek(scene.queue, 1)
    scene.consumer.resume([scene.queue])
    assert scene.member.polled(1) == BODIES[1:2]
    return POLLED


def unsubscribes(scene):
    scene.consumer.unsubscribe(scene.topic)
    wait_until("no queue", lambda: not scene.consumer.assignment(), PATIENCE_S)


def loses_its_queue(scene):
    scene.joins()


def loses_its_queue_to_one_that_commits(scene):
    other = scene.joins()
    other.polled(4)
    other.consumer.commit()
    wait_until("its offset", lambda: (scene.stored or 0) >= 4, PATIENCE_S)
    return scene.stored


def loses_its_queue_and_has_it_back(scene):
    other = scene.joins()
    other.polled(3)
    other.consumer.commit()
    offset = scene.stored
    other.consumer.shutdown()
    wait_until("the queue", scene.consumer.assignment, PATIENCE_S)
    return offset


HAPPENS = [
    nothing,
    seeks_back,
    seeks_back_and_polls,
    seeks_on,
    seeks_to_its_end_and_back,
    pauses,
    pauses_seeks_and_resumes,
    unsubscribes,
    loses_its_queue,
    loses_its_queue_to_one_that_commits,
    loses_its_queue_and_has_it_back,
]


@pytest.mark.parametrize("happens", HAPPENS, ids=lambda each: each.__name__)
def test_commit_stores_only_polled_offsets_of_owned_queues(cluster, happens):
    scene = Scene(cluster)
    expected = happens(scene)
    scene.commit()
    implementation_of(scene.consumer).request_rebalance()
    if expected is None:  # polled messages: another member may or may not know of them
        assert scene.stored in {None, -1, 0, POLLED}
    else:
        wait_until("the offset", lambda: scene.stored == expected, PATIENCE_S)
    scene.consumer.shutdown()
    assert expected is None or scene.stored == expected


@pytest.mark.parametrize("happens", HAPPENS, ids=lambda each: each.__name__)
def test_uncommitted_polled_messages_are_redelivered(cluster, happens):
    scene = Scene(cluster)
    happens(scene)
    begin = max(scene.stored or 0, 0)
    scene.consumer.shutdown()
    for each in scene.cluster.members(scene.group):
        assert each.startswith("a-")
    third = Member(cluster, scene.group, scene.topic, "0")
    wait_until("it has the queue", third.consumer.assignment, PATIENCE_S)
    assert scene.stored in {None, -1, begin}
    assert third.polled(len(BODIES) - begin) == BODIES[begin:]
