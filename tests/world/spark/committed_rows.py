"""The model of readers of committed rows: they must have what sinks have reported as committed.

a row            was written by a sink, in a batch that was reported as committed
a batch          has each batch of a sink as a whole, or nothing of it; run again, it is the same
a span           is whole; its rows are missing only after a trouble with the sink's topics
a query          has in the end all rows of all committed batches, each once
unless           there was trouble with the topics of the sink; but no row is ever there twice
"""

from math import inf

from world.spark.bodies import known_by_row
from world.spark.rows import RowModel
from world.spark.workers import Crashed

from rmq_spark.client.manifest import commits_topic_name
from rmq_spark.spark.errors import DataLoss


class CommittedModel(RowModel):
    """The state of one streaming query that reads committed rows."""

    groups = ()

    def __init__(self, ledger, query):
        super().__init__(ledger, query)
        self._batches = {}  # number -> places by body
        self._last_committed = -1
        self._run_began_calm = False

    # ---- events of the query

    def began(self):
        """Record the start of a run."""
        self._run_began_calm = self._ledger.is_calm

    def initial_offset(self, start):
        """Record the query's start offset."""

    def planned(self, batch, end, *, is_new):
        """Record a batch's end in the offset log."""

    def begins_at_none(self, error):
        """Return whether the error says that the query's start does not exist any more; such starts
        are not drawn."""
        return False

    def looked(self):
        """Record the end offset that a run was given."""

    def came_to_its_end(self):
        """Check that a run with AvailableNow that ended has read everything that existed at its
        start."""

    def failed(self, error):
        super().failed(error)
        if self._run_began_calm and not isinstance(error, (Crashed, DataLoss)):
            self.complain(f"it has ended in calm weather: {error!r}")

    def seen(self, pieces, rows):
        """Check an attempt at some pieces: it has the rows of their spans, complete and in order.

        A span with lost rows is left out. A later span may reuse the places of a lost one.
        """
        places = [self._place_of(row) for row in rows]
        reached = {0}
        for span in (span for piece in pieces for span in piece.spans):
            beyond = self._behind(span, places, reached)
            reached = beyond | reached if self._is_disturbed else beyond
        if len(places) not in reached:
            self.complain(f"{pieces} have rows of {places}")

    def _behind(self, span, places, reached):
        """Return the possible numbers of positions that earlier spans and this one have.

        A record that a lie made unreadable may be left out, if the query's options say so.
        """
        for place in self._places_of(span):
            there = {at + 1 for at in reached if places[at : at + 1] == [place]}
            reached = there | reached if place in self._left_out else there
        return reached

    def _places_of(self, span):
        queue = span.queue
        first = self._ledger.first_physical_offset(queue.topic, queue.broker_name, queue.queue_id)
        return [(*first, span.queue_offset + at) for at in range(span.message_count)]

    def ran(self, batch, parts):
        """Record the end of all tasks of a batch."""
        rows = {}
        for row in (row for part in parts for row in part):
            body = known_by_row(row, self._program.options)
            if body in rows:
                self.complain(f"{body} is there twice in batch {batch}")
            rows[body] = self._place_of(row)
        for other, before in self._batches.items():
            twice = [body for body in rows if body in before and other != batch]
            if twice:
                self.complain(f"{twice} are in batches {other} and {batch}")
        before = self._batches.get(batch)
        if before is not None and before != rows and not self._is_disturbed:
            self.complain(f"batch {batch} had {before}, and has {rows} when it is run again")
        self._check_whole(batch, rows)
        self._batches[batch] = rows

    def _check_whole(self, batch, rows):
        left = set(rows)
        for sink in self._ledger.sinks:
            for number, bodies in sink.told.items():
                some = bodies & rows.keys()
                left -= some
                if some and some != bodies and not self._is_disturbed:
                    self.complain(f"batch {batch} has a part of batch {number}: {some}")
        if left:
            self.complain(f"batch {batch} has what nobody has told to count: {left}")

    def committed(self, batch):
        """Record a batch in the commit log: its rows count."""
        if batch != self._last_committed + 1:
            self.complain(f"batch {batch} follows {self._last_committed}")
        self._last_committed = batch

    # ---- final checks

    @property
    def _is_disturbed(self):
        """Return whether there was a trouble of the sinks' topics, or a lie about them."""
        if self._left_out:
            return True
        (topic,) = self._program.topics
        topics = (topic, commits_topic_name(topic))
        names = [broker.name for broker in self._ledger.brokers]
        causes = [self._ledger.last_cause((topic, name, 0)) for topic in topics for name in names]
        return max(causes, default=-inf) > -inf

    def outstanding(self):
        """Return committed rows that are in no batch, and rows that are still to be written."""
        read = {body for rows in self._batches.values() for body in rows}
        for sink in self._ledger.sinks:
            if not sink.is_exactly_once:
                continue
            if not sink.is_done:
                yield f"{self._program.name}: all that is written"
            for number in sink.counted if not self._is_disturbed else ():
                if not sink.told[number] <= read:
                    yield f"{self._program.name}: {sink.told[number] - read} of batch {number}"

    def check_what_is_gone(self):
        """Check that all lost rows were reported."""
        if not self._is_disturbed and self._told:
            self.complain(f"it was told of losses: {dict(self._told)}")
