"""The model of committed rows: spans are complete, and a lost one may share its places with a later
one."""

from types import SimpleNamespace

import pytest
from world.spark.committed_rows import CommittedModel
from world.spark.ledger import Ledger

from rmq_spark.client.manifest import CommittedSpan
from rmq_spark.spark.exactly_once.committed_reader import SpanGroup
from rmq_spark.wire.message_queue import MessageQueue

QUEUE = MessageQueue("S0", "broker-a", 1)


class Scene:
    """A query that reads pieces, in a world that records complaints."""

    def __init__(self, **options):
        self.complaints = []
        self._world = SimpleNamespace(
            kernel=SimpleNamespace(now=1.0),
            brokers=[SimpleNamespace(name="broker-a")],
            liars=frozenset(),
            complain=self.complaints.append,
        )
        self.ledger = Ledger(self._world)
        run = SimpleNamespace(name="committed 1")
        program = SimpleNamespace(name="committed", options=options, topics=["S0"], run=run)
        self._model = CommittedModel(self.ledger, program)
        self._model.goes_on_with(options)

    def lie(self):
        """Let a broker give wrong responses."""
        self._world.liars = {"broker-a"}

    def leave_out(self, offset):
        """Log that the record at an offset cannot be read."""
        self._model.logged(
            f"offset {offset} of queue 1 of S0 on broker-a cannot be read, and "
            "it is skipped: its body is another"
        )

    def see(self, spans_of_pieces, offsets):
        """Report the rows of an attempt at pieces of these spans; return whether the model accepts
        them."""
        pieces = [
            SpanGroup(tuple(CommittedSpan(QUEUE, first, count, 0, 0) for first, count in spans))
            for spans in spans_of_pieces
        ]
        rows = [
            {"topic": "S0", "brokerName": "broker-a", "queueId": 1, "queueOffset": offset}
            for offset in offsets
        ]
        before = len(self.complaints)
        self._model.seen(pieces, rows)
        return len(self.complaints) == before


@pytest.fixture
def scene():
    return Scene()


def test_committed_spans_must_keep_their_row_order(scene):
    assert scene.see([[(0, 2), (5, 1)], [(2, 2)]], [0, 1, 5, 2, 3])
    assert not scene.see([[(0, 2), (5, 1)], [(2, 2)]], [0, 1, 2, 3, 5])


@pytest.mark.parametrize("offsets", [[], [0, 1], [1, 5], [5], [0, 5], [0, 1, 5, 6]])
def test_undisturbed_spans_are_read_completely(scene, offsets):
    assert not scene.see([[(0, 2), (5, 1)]], offsets)


@pytest.mark.parametrize(
    "spans_of_pieces",
    [[[(0, 1), (0, 3), (3, 2)]], [[(0, 1)], [(0, 3), (3, 2)]], [[(0, 2), (0, 3)], [(3, 2)]]],
)
def test_lost_committed_span_may_share_its_offsets_with_a_later_one(scene, spans_of_pieces):
    """A queue that lost its end grows again, and later commits reuse its offsets."""
    scene.ledger.takes_away(broker="broker-a")
    assert scene.see(spans_of_pieces, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("offsets", [[0], [0, 1], [0, 3, 4], [2, 3, 4], [0, 1, 2, 0, 3, 4, 3]])
def test_partly_read_committed_span_is_refused(scene, offsets):
    scene.ledger.takes_away(broker="broker-a")
    assert scene.see([[(0, 3), (3, 2)]], [0, 1, 2])
    assert scene.see([[(0, 3), (3, 2)]], [3, 4])
    assert not scene.see([[(0, 3), (3, 2)]], offsets)


@pytest.mark.parametrize("is_lied_to", [True, False])
def test_committed_row_left_out_after_a_lie_is_no_part_of_its_span(is_lied_to):
    scene = Scene(onBadRecord="skip")
    if is_lied_to:
        scene.lie()
    scene.leave_out(1)
    assert scene.see([[(0, 3), (3, 2)]], [0, 2, 3, 4]) is is_lied_to
    assert scene.see([[(0, 3), (3, 2)]], [0, 1, 2, 3, 4])  # another attempt has read it
    assert not scene.see([[(0, 3), (3, 2)]], [0, 1, 3, 4])
