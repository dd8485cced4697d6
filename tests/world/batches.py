"""The model of staged batches: a batch is visible as a whole or not at all, and only once.

    staged ──> asked      a commit was sent: it may be committed or not, and a repeat is allowed
          ├──> aborted    nothing of it may ever be seen
          └──> committed  acknowledged, reported as the sink's last, or a row was seen: all must be

A failed commit leaves invisible rows in the log, and perhaps a gap in each queue. Like the ledger,
the model uses responses only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(eq=False)
class Batch:
    """One batch of a sink, and its known state."""

    sink: str
    batch_id: int
    state: str = "staged"
    attempts: list = field(default_factory=list)  # those that a commit names
    rows: list = field(default_factory=list)  # the messages of these attempts, in order
    floors: dict = field(default_factory=dict)  # queue -> lowest possible offset of its rows
    open_in_life: int | None = None  # the life in which a commit is unanswered

    def __str__(self):
        return f"batch {self.batch_id} of {self.sink}"

    @property
    def in_queues(self):
        """Return the number of rows in each queue."""
        return Counter((sent.topic, sent.queue_id) for sent in self.rows)


class Batches:
    """All batches of a world."""

    def __init__(self, ledger):
        self._ledger = ledger
        self._sinks = {}
        # queue -> maximum number of offsets that failed commits may have left empty
        self.gaps_max = Counter()

    def sinks(self):
        return list(self._sinks)

    def all_of(self, sink):
        return self._sinks.setdefault(sink, [])

    def current(self, sink):
        """Return the batch that a sink is writing: a new one once the last is decided."""
        batches = self.all_of(sink)
        if not batches or batches[-1].state in ("committed", "aborted"):
            batches.append(Batch(sink, len(batches)))
        return batches[-1]

    def last_committed(self, sink):
        """Return the last batch that a sink has certainly committed, or None."""
        committed = [each for each in self.all_of(sink) if each.state == "committed"]
        return committed[-1] if committed else None

    def is_last(self, batch):
        """Return whether no later batch of its sink is or may be committed."""
        later = self.all_of(batch.sink)[batch.batch_id + 1 :]
        return not any(each.state in ("asked", "committed") for each in later)

    # ---- commits

    def committing(self, batch):
        """Record that its commit is about to be sent: from now on its rows may be seen."""
        if batch.state == "staged":
            batch.state = "asked"
            for sent in batch.rows:
                sent.state = "under way"
        if batch.state == "asked":
            batch.open_in_life = self._ledger.life
            for queue, count in batch.in_queues.items():
                batch.floors.setdefault(queue, self._ledger.queues[queue].certain_end)
                self.gaps_max[queue] += count

    def unanswered(self, batch):
        """Record that the result of its commit is unknown."""
        for sent in batch.rows:
            self._ledger.unknown(sent)

    def told_last(self, sink, batch_id, rows, spans, *, asked_in_life):
        """Record a response about a sink's last committed batch; None means that there is none."""
        ledger, known = self._ledger, self.last_committed(sink)
        if known is not None and (batch_id is None or batch_id < known.batch_id):
            ledger.complain(f"{known} is committed, and the last of its sink is {batch_id}")
        if batch_id is None:
            return
        batch = next((each for each in self.all_of(sink) if each.batch_id == batch_id), None)
        if batch is None or batch.state in ("staged", "aborted"):
            ledger.complain(
                f"{batch or f'batch {batch_id} of {sink}'} was not to be committed, and is"
            )
        if rows != len(batch.rows):
            ledger.complain(f"{batch} has {len(batch.rows)} rows, and {rows} by its broker")
        if batch.state == "asked":
            self._committed(batch)
        if asked_in_life == ledger.life:
            self._place(batch, spans)

    def aborted(self, batch):
        """Record that the batch was discarded, because the sink's last batch is an earlier one."""
        batch.state = "aborted"
        for sent in batch.rows:
            self._ledger.refused(sent)

    def saw(self, sent):
        """Record that a row was seen: its batch is committed."""
        batch = sent.batch
        if batch.state not in ("asked", "committed"):
            self._ledger.complain(f"{sent} was seen, and {batch} is {batch.state}")
        if batch.state == "asked":
            self._committed(batch)

    def _committed(self, batch):
        batch.state, batch.open_in_life = "committed", None
        for queue, count in batch.in_queues.items():  # offsets filled by this commit are no gap
            self.gaps_max[queue] -= count
        for sent in batch.rows:
            sent.state = "stored"
            sent.is_certain = True

    def _place(self, batch, spans):
        """Take the offsets of all rows from the response to a commit."""
        waiting = {}
        for sent in batch.rows:
            waiting.setdefault((sent.topic, sent.queue_id), []).append(sent)
        for span in spans:
            for at in range(span.queue_offset, span.queue_offset + span.count):
                of_queue = waiting.get((span.topic, span.queue_id))
                if not of_queue:
                    self._ledger.complain(f"{batch} has a span of other rows: {span}")
                self._ledger.stored(of_queue.pop(0), at)
        if any(waiting.values()):
            self._ledger.complain(f"the spans of {batch} have not all its rows: {spans}")

    # ---- checks of pulls

    def whole(self, asked):
        """Return the batches whose rows must all be in a pull that starts now and reads
        to the end."""
        queue = asked.topic, asked.queue_id
        return [
            batch
            for batches in self._sinks.values()
            for batch in batches
            if batch.state == "committed" and asked.queue_offset <= batch.floors.get(queue, -1)
        ]

    def pulled(self, asked, whole, told):
        """Check the response to a pull without a filter."""
        if asked.wanted or told.next_offset < told.max_offset or self._ledger.may_expire:
            return
        if told.min_offset > asked.queue_offset or told.code:
            return
        found = {bytes(message.body) for message in told.messages}
        for batch in whole:
            for sent in batch.rows:
                is_here = (sent.topic, sent.queue_id) == (asked.topic, asked.queue_id)
                if is_here and sent.body not in found:
                    self._ledger.complain(f"{batch} was seen before, and a pull misses {sent}")

    def audited(self):
        """Check after an audit that each batch with a seen row is complete."""
        if self._ledger.may_expire:
            return
        for batches in self._sinks.values():
            for batch in batches:
                missing = [sent for sent in batch.rows if not sent.seen]
                if batch.state == "committed" and missing:
                    self._ledger.complain(
                        f"{batch} is committed, and {len(missing)} of its {len(batch.rows)} rows "
                        f"are nowhere, as {missing[0]}"
                    )
