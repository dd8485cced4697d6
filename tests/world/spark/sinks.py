"""The model of the sink: committed rows are stored, and nothing else is."""

from collections import defaultdict

from world.spark.bodies import known_by
from world.spark.workers import Crashed

from rmq_spark.errors import RocketPollError
from rmq_spark.spark.write.reports import ROW_ID
from rmq_spark.wire.message.properties import KEYS, TAGS


class SinkModel:
    """The state of one program that writes."""

    def __init__(self, ledger, writes):
        self._ledger = ledger
        self._writes = writes
        self._rows = {}  # row by body
        self._ids = {}  # message id by body
        self._committed = []  # partitions, their commit messages, and the time
        self._stored = defaultdict(set)  # places by body
        self.told = {}
        """Bodies of each batch that was reported as committed, though the result may be unknown."""

        self.counted = set()
        """The batches that are certainly committed."""

    def logged(self, line):
        """Check a log line of its processes; none may concern its rows."""

    def row(self, number):
        """Return a new row to be written."""
        body = f"{self._writes.name}/{number} ".encode().ljust(number % 3 * 100, b".")
        row = body, f"k{number}", (None, "Aa", "C")[number % 3], [("colour", f"c{number % 7}")]
        self._rows[body] = row
        return row

    def sent(self, batch, partitions, sent):
        """Record that all tasks have reported."""
        for number, (rows, each) in enumerate(zip(partitions, sent, strict=True)):
            spans = sum(span.message_count for span in each.rows.spans)
            if self._writes.is_visible_to_all:  # the commit has their places
                spans = each.rows.row_count
            if not each.rows.row_count == spans == len(rows):
                self._ledger.complain(
                    f"batch {batch} of {self._writes.name} has {len(rows)} rows in partition "
                    f"{number}, of which {each.rows.row_count} are reported, in spans of {spans}"
                )
            for at, (body, *_) in enumerate(rows if not self._writes.is_exactly_once else ()):
                self._ids[body] = f"{each.task.batch_id}:{number}:{at}"

    @property
    def format(self):
        """Return the format of its bodies; None if rows contain the bodies."""
        return self._writes.format

    @property
    def is_exactly_once(self):
        """Return whether its batches count by their manifests."""
        return self._writes.is_exactly_once

    @property
    def is_visible_to_all(self):
        """Return whether every consumer sees its batches as a whole."""
        return self._writes.is_visible_to_all

    @property
    def is_done(self):
        """Return whether everything has been written."""
        return not self._writes.is_wanted

    @property
    def counted_rows(self):
        """Return the number of rows that are certainly committed."""
        return sum(len(self.told[batch]) for batch in self.counted)

    def tells(self, batch, partitions):
        """Record that the driver is about to report a batch as committed."""
        self.told[batch] = {body for rows in partitions for body, *_ in rows}

    def committed(self, batch, partitions, sent):
        """Record a committed batch."""
        self.counted.add(batch)
        now = self._ledger.now
        self._committed += [(now, rows, each) for rows, each in zip(partitions, sent, strict=True)]

    def failed(self, error):
        """Record the error that ended a write."""
        if not isinstance(error, (RocketPollError, Crashed)):
            self._ledger.complain(
                f"{self._writes.run.name} ended with {error!r}, which is no error of ours"
            )
        if "\n" in str(error):
            self._ledger.complain(
                f"{self._writes.run.name} ended with an error of several lines: {error}"
            )

    def stored(self, queue, message):
        """Record a stored message in the sink's topic."""
        row = self._rows.get(known_by(self._writes.format, message.body))
        if row is None:
            return False
        body, keys, tags, properties = row
        self._stored[body].add((*queue, message.queue_offset))
        found = dict(message.properties)
        right = {KEYS: keys, TAGS: tags, **dict(properties)}
        for name, value in right.items():
            if found.get(name) != value:
                self._ledger.complain(
                    f"{body} is stored with {name} {found.get(name)!r}, not {value!r}"
                )
        if body in self._ids and not found[ROW_ID].endswith(f":{self._ids[body]}"):
            self._ledger.complain(f"{body} is stored as {found[ROW_ID]}, not as {self._ids[body]}")
        return True

    def check(self):
        """Check that committed rows are stored, except after a trouble of their queue."""
        if self._writes.is_visible_to_all:
            self._check_what_all_see()
            return
        for _, rows, each in self._committed:
            if any(self._ledger.may_be_gone(_queue(span.queue)) for span in each.rows.spans):
                continue
            missing = [body for body, *_ in rows if body not in self._stored]
            if missing:
                self._ledger.complain(f"{each} was committed, and {missing} are not stored")
            places = {
                (*_queue(span.queue), span.queue_offset + at)
                for span in each.rows.spans
                for at in range(span.message_count)
            }
            there = set().union(*(self._stored[body] for body, *_ in rows))
            if not places <= there:
                self._ledger.complain(
                    f"{each} was committed, and there are other messages at its places"
                )

    def _check_what_all_see(self):
        """Check that each row is there once, each batch completely or not at all, and no
        uncommitted row."""
        topic = self._writes.topic
        if any(self._ledger.may_be_gone((topic, each.name, 0)) for each in self._ledger.brokers):
            return
        left = set(self._stored)
        for number, bodies in self.told.items():
            some = bodies & self._stored.keys()
            left -= bodies
            if some != bodies and (some or number in self.counted):
                self._ledger.complain(f"of batch {number} everybody sees {some}, and not {bodies}")
        if left:
            self._ledger.complain(f"everybody sees what nobody has told to count: {left}")
        twice = {body: found for body, found in self._stored.items() if len(found) > 1}
        if twice:
            self._ledger.complain(f"everybody sees rows twice: {twice}")


def _queue(queue):
    return queue.topic, queue.broker_name, queue.queue_id
