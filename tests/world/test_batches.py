"""The model of staged batches detects each lie of a broker; tests report the lies by hand."""

from dataclasses import replace

import pytest
from world.acts.pulls import Asked, Told
from world.stage import Broken
from world.test_ledger import Scene

from rmq_spark.wire.bodies.staged_batches import BatchSpan

SINK = "sink"


class BatchScene(Scene):
    """One batch of two rows in one queue and one in another."""

    def __init__(self):
        super().__init__()
        self.batches = self.ledger.batches
        self.batch = self.batches.current(SINK)
        self.batch.rows = [
            self.ledger.stage(self.batch, "T0", queue_id, 20, {"KEYS": "k"})
            for queue_id in (0, 0, 1)
        ]

    def commit(self):
        self.batches.committing(self.batch)

    def tell_last(self, batch_id=0, rows=3, counts=(2, 1)):
        spans = [
            BatchSpan(topic="T0", queue_id=at, queue_offset=0, count=count, crc=0, body_bytes=0)
            for at, count in enumerate(counts)
        ]
        self.batches.told_last(SINK, batch_id, rows, spans, asked_in_life=0)

    def see(self, number, queue_offset=0):
        self.ledger.saw(self.stored(self.batch.rows[number], queue_offset))

    def look(self, *messages, whole=None):
        asked = Asked("T0", 0, 0)
        whole = self.batches.whole(asked) if whole is None else whole
        end = len(messages)
        self.batches.pulled(asked, whole, Told(0, "", list(messages), end, 0, end))


@pytest.fixture
def scene():
    return BatchScene()


def test_truthful_batch_story_breaks_no_rule(scene):
    scene.batches.told_last(SINK, None, 0, (), asked_in_life=0)
    scene.commit()
    whole = scene.batches.whole(Asked("T0", 0, 0))
    scene.look(whole=whole)
    scene.tell_last()
    scene.commit()
    scene.tell_last()
    first, second, _ = scene.batch.rows
    scene.look(scene.stored(first, 0), scene.stored(second, 1))
    scene.ledger.life_ended("power")
    scene.see(0)
    scene.see(1, 1)
    scene.see(2)
    scene.batches.audited()
    assert scene.batches.current(SINK).batch_id == 1


def test_watch_reports_row_visible_before_its_commit(scene):
    with pytest.raises(Broken, match="never committed"):
        scene.see(0)


def test_seen_row_of_an_aborted_batch_is_detected(scene):
    scene.commit()
    scene.batches.aborted(scene.batch)
    with pytest.raises(Broken, match="was refused"):
        scene.see(0)


def test_watch_reports_partially_visible_batch(scene):
    scene.commit()
    scene.batches.unanswered(scene.batch)
    scene.see(0)
    scene.see(1, 1)
    with pytest.raises(Broken, match="1 of its 3 rows are nowhere"):
        scene.batches.audited()


def test_pull_missing_a_part_of_a_seen_batch_is_detected(scene):
    scene.commit()
    scene.see(2)
    with pytest.raises(Broken, match="was seen before, and a pull misses"):
        scene.look(scene.stored(scene.batch.rows[0], 0))


def test_watch_reports_duplicate_row(scene):
    scene.commit()
    scene.tell_last()
    with pytest.raises(Broken, match="is at 5, and at 0"):
        scene.see(0, 5)


def test_committed_batch_lost_by_a_power_loss_is_detected(scene):
    scene.commit()
    scene.tell_last()
    scene.ledger.life_ended("power")
    with pytest.raises(Broken, match="is lost"):
        scene.audited()


def test_broker_forgetting_a_sinks_last_commit_is_detected(scene):
    scene.commit()
    scene.tell_last()
    with pytest.raises(Broken, match="last of its sink is None"):
        scene.batches.told_last(SINK, None, 0, (), asked_in_life=0)


def test_watch_reports_commit_that_was_never_requested(scene):
    with pytest.raises(Broken, match="was not to be committed"):
        scene.tell_last()
    with pytest.raises(Broken, match="was not to be committed"):
        scene.tell_last(batch_id=7)


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ({"rows": 2}, "has 3 rows, and 2"),
        ({"counts": (2, 2)}, "span of other rows"),
        ({"counts": (2, 0)}, "have not all its rows"),
    ],
)
def test_watch_reports_commit_answer_with_other_rows(scene, told, complaint):
    scene.commit()
    with pytest.raises(Broken, match=complaint):
        scene.tell_last(**told)


def test_watch_accepts_gaps_of_failed_commits_only(scene):
    scene.commit()
    scene.batches.unanswered(scene.batch)
    scene.put(2)
    scene.audited(2, high=3)
    scene.put(4)
    with pytest.raises(Broken, match="has nothing at 3"):
        scene.audited(2, 4, high=5)


def test_row_of_a_batch_in_the_wrong_topic_is_detected(scene):
    scene.commit()
    with pytest.raises(Broken, match="is in T1/0"):
        scene.ledger.saw(replace(scene.stored(scene.batch.rows[0], 0), topic="T1"))
