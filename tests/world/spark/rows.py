"""The models of readers: which rows a query must and must not have, and which losses it must
report.

a row            is a message that somebody sent, unaltered, in its queue's order,
                 and passes the filter
a batch          has no message twice, none that another batch has; run again, it has the same ones;
                 except for a queue of which a query says that it reads all messages
a query          has in the end what is stored past its start, in some batch
unless           a loss was reported that names its queue: in an error, or with failOnDataLoss=false
                 in a log
and a loss       is reported only for queues with some trouble
"""

import json
import re
from collections import Counter, defaultdict, deque
from math import inf

from world.spark.bodies import fields_in
from world.spark.workers import Crashed

from rmq_spark.errors import RocketPollError
from rmq_spark.spark.errors import CheckpointError, DataLoss, RecordFault

_QUEUE = re.compile(
    r"queue (\d+) of (\S+) on ([\w-]+)"
    r"(?: has lost offsets (\d+) to (\d+)"
    r"| is no longer readable \(perm\): its offsets from (\d+) to (\d+))?"
)
_BROKERS_GONE = "no name server knows broker"
_LEFT_OUT = re.compile(
    r"offset (\d+) of queue (\d+) of (\S+) on ([\w-]+) "
    r"cannot be read, and it is skipped"
)
_TAKEN_FOR_GONE = "cannot be read, and counts as missing"
_PASSED_OVER = "messages are lost, continuing without them"
_REFUSED = "option assign: topic"
_READ_AGAIN = "all are read"
_ALL = 1_000_000
_LINES_MAX = 100  # many tasks of a batch may each log that a broker is unreachable
_SEEN_SECONDS = 2.0
"""Seconds after its acknowledgement until a message is flushed and visible to every reader."""


class RowModel:
    """The state of one program that reads."""

    def __init__(self, ledger, program):
        options = program.options
        self._ledger = ledger
        self._program = program
        self._tags = (
            [each.strip() for each in options["tags"].split("||")] if "tags" in options else None
        )
        self._colour = options["sql"].split("'")[1] if "sql" in options else None
        self._namespace = options.get("namespace")
        self._format = options.get("bodyFormat")
        self._assigned = json.loads(options.get("assign", "null"))
        self._told = defaultdict(
            list
        )  # losses: when, and the offsets from one to another, by queue
        self._left_out = set()  # places of records that a lie made unreadable, from the log
        self._read_again = set()  # queues of which the query repeats some messages, from the log
        self._lines = Counter()
        self._leaves_out_damaged = options.get("onBadRecord") == "skip"
        # By queue: when the query had read past the last loss.
        self._known_ends = {}

    def complain(self, what):
        """Report a broken promise."""
        self._ledger.complain(f"{self._program.name}: {what}")

    # ---- events of the program

    def goes_on_with(self, options):
        """Record the user's new options."""
        self._leaves_out_damaged |= options.get("onBadRecord") == "skip"

    def failed(self, error):
        """Check the error that ended a run."""
        if not isinstance(error, (RocketPollError, Crashed)):
            self.complain(f"it has ended with {error!r}, which is no error of ours")
        if "\n" in str(error):
            self.complain(f"it has ended with an error of several lines: {error}")
        if isinstance(error, DataLoss):
            self._loses(str(error))
        elif isinstance(error, CheckpointError):
            self.complain(f"it does not take its own checkpoint: {error}")
        elif _REFUSED in str(error) and not self._ledger.queues_may_go:
            self.complain(f"it is refused queues that nobody has taken away: {error}")

    def logged(self, line):
        """Check a log record of its processes: nothing may be logged repeatedly."""
        run = self._program.run
        self._lines[run.name, line] += 1
        if self._lines[run.name, line] == _LINES_MAX:
            self.complain(f"one run has logged {_LINES_MAX} times: {line}")
        if _PASSED_OVER in line:
            self._loses(line)
        if _TAKEN_FOR_GONE in line:
            self._loses(line)
        if (found := _LEFT_OUT.match(line)) is not None:
            offset, number, topic, broker = found.groups()
            place = self._ledger.first_physical_offset(topic, broker, int(number), int(offset))
            if self._ledger.is_lied_to(place[:3]):
                self._told[place[:3]].append((self._ledger.now, place[3], place[3]))
                self._left_out.add(place)

    def may_meet(self, error):
        """Return whether the unreadable message was damaged, or has another format."""
        queue = error.queue
        place = self._ledger.first_physical_offset(
            queue.topic, queue.broker_name, queue.queue_id, error.queue_offset
        )
        return (
            place in self._ledger.damaged
            or self._ledger.is_lied_to(place[:3])
            or self._may_be_none_of_its_format(place)
        )

    def _may_be_none_of_its_format(self, place):
        """Return whether a message of another format was sent to this position, or to an unknown
        one."""
        acknowledged = self._ledger.acknowledged
        return self._format is not None and any(
            sent.topic == place[0]
            and sent.fields_as(self._format) is None
            and (body not in acknowledged or acknowledged[body][1] == place)
            for body, sent in self._ledger.sent.items()
        )

    def _loses(self, text):
        if _BROKERS_GONE in text:
            return  # the queues may come back, and then nothing is lost
        for number, topic, broker, *offsets in _QUEUE.findall(text):
            if topic not in self._program.topics:
                continue  # the queue of another source of the query
            queue = self._ledger.first_physical_offset(topic, broker, int(number))
            first, last = [int(each) for each in offsets if each] or (0, inf)
            self._told[queue].append((self._ledger.now, first, last))
            if _READ_AGAIN in text:
                self._read_again.add(queue)
            if not self._ledger.may_be_gone(queue, self._known_ends.get(queue, 0.0)):
                self.complain(f"it misses what nobody has taken away: {text}")

    def _is_excused(self, place, sent):
        """Return whether a reported loss may include the message at this position, or it may be
        left out."""
        *queue, offset = place
        if self._leaves_out_damaged and self._cannot_be_read(sent, place):
            return True
        return any(
            time >= sent.sent_at and first <= offset <= last
            for time, first, last in self._told[tuple(queue)]
        )

    def _may_differ(self, place, sent):
        """Return whether a repeated read may lack the message at this position. Where offsets may
        have gaps, nothing contradicts a claim that it does not exist."""
        return self._is_excused(place, sent) or self._ledger.is_misled(place[:3])

    def _is_denied(self, place, sent):
        """Return whether a broker's claims may have led past a message; with a filter, the number
        of matches is unknown."""
        queue, is_filtered = place[:3], self._tags is not None or self._colour is not None
        is_misled = is_filtered and self._ledger.is_misled(queue)
        return is_misled and sent.sent_at <= self._ledger.last_cause(queue)

    def _cannot_be_read(self, sent, place):
        if self._format is not None and sent.fields_as(self._format) is None:
            return True
        return self._ledger.damaged.get(place) == sent.body

    def _reads(self, queue):
        """Return whether the program reads a queue."""
        topic, broker, number = queue
        if topic not in self._program.topics:
            return False
        if self._assigned is None:
            return True
        name = topic.rpartition("%")[2] if self._namespace is not None else topic
        below = self._assigned[name]
        return number in (below.get(broker, ()) if isinstance(below, dict) else below)

    # ---- rows

    def seen(self, pieces, rows):
        """Check a finished attempt at some pieces, whether it counts or not."""
        left = deque(rows)
        for piece in pieces:
            found = []
            while left and self._is_of(piece, left[0]):
                found.append(left.popleft())
            self._seen_of(piece, found)
        if left:
            self.complain(f"{pieces} have a row of none of them, or not in order: {left[0]}")

    def _is_of(self, piece, row):
        queue, place = piece.queue, self._place_of(row)
        first = self._ledger.first_physical_offset(queue.topic, queue.broker_name, queue.queue_id)
        return place[:3] == first and piece.start <= place[3] < piece.end

    def _seen_of(self, piece, rows):
        before = piece.start - 1
        for row in rows:
            place = self._place_of(row)
            if place[3] <= before:
                self.complain(f"{piece} has a row of {place} behind {before}")
            before = place[3]
            self._check_content(row)

    def _check_content(self, row):
        sent = self._ledger.sent.get(self._body_of(row))
        if sent is None:
            self.complain(f"there is a row that nobody has sent: {row}")
            return
        properties = dict(row["properties"])
        told = {
            "topic": (self._place_of(row)[0], sent.topic),
            "tags": (row["tags"], sent.tags),
            "keys": (row["keys"], sent.keys),
            **{name: (properties.get(name), value) for name, value in sent.properties.items()},
        }
        for name, (found, right) in told.items():
            if found != right:
                self.complain(f"{sent} came with {name} {found!r}, not {right!r}")
        if not self._accept(sent):
            self.complain(f"{sent} came, and does not pass the filter")
        if not self._reads(self._place_of(row)[:3]):
            self.complain(f"{sent} came, of a queue that it does not read: {self._place_of(row)}")

    def _accept(self, sent):
        if self._tags is not None and sent.tags not in self._tags:
            return False
        return self._colour is None or sent.properties["colour"] == self._colour

    def _once(self, parts):
        """Return the places of the rows of all partitions, by body; check that none
        occurs twice."""
        rows = {}
        for row in (row for part in parts for row in part):
            body, place = self._body_of(row), self._place_of(row)
            if body in rows:
                self.complain(f"{self._name(body)} is there twice, at {rows[body]} and {place}")
            rows[body] = place
        return rows

    def _body_of(self, row):
        """Return the body of a row; for a null, the body of the message that was damaged there."""
        if self._format is not None and row["keys"] is not None:
            return self._typed_body_of(row)
        if row.get("body") is not None:
            return row["body"]
        if self._program.options.get("onBadRecord") != "null":
            self.complain(f"there is a row without a body: {row}")
        return self._ledger.damaged.get(self._place_of(row))

    def _typed_body_of(self, row):
        """Return the body of the message that a row's keys identify; its fields must equal the
        row's."""
        sent = self._ledger.sent_with.get(row["keys"])
        if sent is None:
            self.complain(f"there is a row that nobody has sent: {row}")
            return None
        options, found = self._program.options, fields_in(row, self._program.options)
        right, place = sent.fields_as(self._format), self._place_of(row)
        if found is None:
            if options.get("onBadRecord") != "null" or not self._cannot_be_read(sent, place):
                self.complain(f"{sent} came without what its body holds: {row}")
        elif right is None or any(right[name] != value for name, value in found.items()):
            self.complain(f"{sent} came as {found}, not as {right}")
        is_whole = place not in self._ledger.damaged and self._format != "text"
        if "body" in row and is_whole and row["body"] != sent.body:
            self.complain(f"{sent} came with another body beside its fields: {row}")
        return sent.body

    def _place_of(self, row):
        within = "" if self._namespace is None else f"{self._namespace}%"
        return self._ledger.first_physical_offset(
            within + row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]
        )

    def _name(self, body):
        return self._ledger.sent[body]

    def _missing_of(self, rows, since, before, but=()):
        """Return messages sent since one time and stored before another that are not among these
        rows, except topics in ``but``."""
        missing = []
        for body, (time, place) in self._ledger.acknowledged.items():
            sent, queue = self._ledger.sent[body], place[:3]
            if not self._reads(queue) or body in rows or not self._accept(sent):
                continue
            is_unread = self._cannot_be_read(sent, place) or self._ledger.is_lied_to(queue)
            if queue[1] in but or (self._leaves_out_damaged and is_unread):
                continue
            is_due = since <= sent.sent_at and time + _SEEN_SECONDS < before
            if is_due and not self._ledger.may_be_gone(queue):
                missing.append(f"{sent}, stored at {time:.6f} s in {queue}")
        return missing


class StreamModel(RowModel):
    """The state of one streaming query."""

    def __init__(self, ledger, query):
        super().__init__(ledger, query)
        options = query.options
        self.groups = {self._whole_group(options)}
        self._starts_at_first = options.get("startingOffsets") == "earliest"
        self._is_without_some = options.get("onBrokerAway") == "skip"
        self._rows_max = {}  # batch -> maximum number of rows at its planning
        self._batches = {}  # batch -> places by body, in its last run
        self._last_committed = -1
        self._begins_at = 0.0
        """Messages sent earlier need not be read, unless the first batch includes them."""

        self._begins = {}  # queue -> start offset, for queues in a batch
        ending = json.loads(options.get("endingOffsets", "{}"))
        within = "" if self._namespace is None else f"{self._namespace}%"
        self._ending = {within + topic: brokers["*"]["*"] for topic, brokers in ending.items()}
        self._gone = None
        self._ends = {}  # batch -> end offset by queue
        self._run_began_at = 0.0
        self._has_looked = True
        self._run_began_calm = False

    # ---- events of the query

    def goes_on_with(self, options):
        super().goes_on_with(options)
        self.groups.add(self._whole_group(options))
        self._is_without_some |= options.get("onBrokerAway") == "skip"

    def _whole_group(self, options):
        group = options.get("consumerGroup")
        return group if group is None or self._namespace is None else f"{self._namespace}%{group}"

    def began(self):
        self._run_began_at = self._ledger.now
        self._run_began_calm = self._ledger.is_calm

    def initial_offset(self, start):
        """Record the start offset of a query without a logged batch."""
        self._ends[-1] = self._flat(json.loads(start)["offsets"])
        if not self._starts_at_first:
            self._begins_at = self._ledger.now

    def planned(self, batch, end, *, is_new):
        """Record a batch's end in the offset log; it is new, or unchanged in a query with other
        sources."""
        document = json.loads(end)
        self._rows_max[batch] = int(self._program.options.get("maxOffsetsPerTrigger", _ALL))
        self._ends[batch] = self._flat(document["offsets"])
        began = self._flat(document.get("began", {}))
        self._begins = self._ends[batch] | began | self._begins
        if (
            is_new
            and batch
            and not began
            and self._ends[batch] == self._ends[batch - 1]
            and self._gone == document.get("gone")
        ):
            self.complain(f"batch {batch} has nothing in it: {end}")
        self._gone = document.get("gone")

    def failed(self, error):
        super().failed(error)
        self._has_looked = False  # after a loss, more losses may follow that are not reported yet
        # Tasks are killed at any time, and sometimes four times in a row.
        is_told = isinstance(error, (Crashed, DataLoss, RecordFault)) or self.begins_at_none(error)
        if self._run_began_calm and not is_told:
            self.complain(f"it has ended in calm weather: {error!r}")

    def begins_at_none(self, error):
        """Return whether the error says that the first start of the query does not
        exist any more."""
        if 0 in self._ends or getattr(error, "option", None) != "startingOffsets":
            return False
        found = _QUEUE.findall(error.problem)
        queues = [(topic, broker, int(number)) for number, topic, broker, *_ in found]
        return any(
            self._ledger.may_be_gone(self._ledger.first_physical_offset(*each)) for each in queues
        )

    def looked(self):
        """Record that a run knows how far it may read, and which messages are lost."""
        self._has_looked = True

    def came_to_its_end(self):
        """Check that a run with AvailableNow has read everything that existed at its start."""
        if self._is_without_some or self._ending:
            return
        # removed brokers, without which the run continues
        gone = {self._ledger.first_name(broker) for broker in self._gone or ()}
        left = self._missing_of(self._committed(), self._begins_at, self._run_began_at, but=gone)
        if left:
            self.complain(f"it has come to its end without {left}")

    def ran(self, batch, parts):
        """Record the end of all tasks of a batch."""
        rows = self._once(parts)
        misled = sum(self._ledger.is_misled(place[:3]) for place in rows.values())
        if len(rows) - misled > self._rows_max[batch]:
            self.complain(f"batch {batch} has {len(rows)} rows")
        for body, place in rows.items():
            if self._is_behind_the_end(place[0], place[3]):
                self.complain(f"{self._name(body)} is at {place}, which is behind the given end")
        for other, found in self._batches.items():
            for body in rows if other != batch else ():
                queue = rows[body][:3]
                if body in found and not (
                    queue in self._read_again or self._ledger.is_misled(queue)
                ):
                    places = f"{found[body]} and {rows[body]}"
                    self.complain(
                        f"{self._name(body)} is in batches {other} and {batch}, at {places}"
                    )
        if batch in self._batches:
            self._check_replay(batch, self._batches[batch], rows)
        self._batches[batch] = rows

    def _check_replay(self, batch, before, rows):
        for body, place in (before | rows).items():
            if (body in before) is not (body in rows) and not self._may_differ(
                place, self._name(body)
            ):
                had, has = ("it", "not") if body in before else ("not", "it")
                what = f"{self._name(body)} at {place}"
                self.complain(
                    f"batch {batch} had {had}, and has {has} when it is run again: {what}"
                )

    def committed(self, batch):
        """Record a batch in the commit log: its rows count."""
        if batch != self._last_committed + 1:
            self.complain(f"batch {batch} follows {self._last_committed}")
        self._last_committed = batch
        for body, place in self._batches[batch].items():
            if self._name(body).sent_at > self._ledger.last_cause(place[:3]) + _SEEN_SECONDS:
                self._known_ends[place[:3]] = self._ledger.now

    def group_committed(self, queue, queue_offset):
        """Check the group offset that a broker got: not past the rows that count."""
        ends = [
            found.get(queue, 0)
            for batch, found in self._ends.items()
            if batch <= self._last_committed
        ]
        if queue_offset > max(ends, default=0):
            self.complain(
                f"one of its groups has {queue_offset} of {queue}, which is in no committed batch"
            )

    # ---- final checks

    def outstanding(self):
        """Return the stored messages that are in no batch."""
        if not self._has_looked:
            yield f"{self._program.name}: whatever it has not looked for since it failed"
        rows = self._committed()
        for queue, bodies in self._ledger.stored.items():
            for offset, body in bodies.items() if self._reads(queue) else ():
                sent = self._ledger.sent.get(body)
                if sent is None or body in rows or not self._accept(sent):
                    continue
                if sent.sent_at < self._begins_at and offset < self._begins.get(queue, 0):
                    continue
                place = (*queue, offset)
                if self._is_excused(place, sent) or self._is_denied(place, sent):
                    continue
                if not self._is_behind_the_end(queue[0], offset):
                    yield f"{self._program.name}: {sent}, at {offset} of {queue}"

    def check_what_is_gone(self):
        """Check that all messages that expired unread were reported, offset by offset."""
        rows = self._committed()
        stored = {body for bodies in self._ledger.stored.values() for body in bodies.values()}
        for body, (_, place) in self._ledger.acknowledged.items():
            sent, (*queue, offset) = self._ledger.sent[body], place
            if body in rows or body in stored or not self._accept(sent):
                continue
            if not self._reads(tuple(queue)):
                continue
            is_read = offset >= self._begins.get(tuple(queue), inf)
            is_read = is_read and not self._is_behind_the_end(queue[0], offset)
            if (
                is_read
                and not self._ledger.can_be_replaced(queue)
                and not self._is_excused(place, sent)
            ):
                self.complain(f"{sent} at {place} was not read, is gone, and nobody was told")

    def _flat(self, tree):
        """Return the offsets in a document of Spark's log, by queue."""
        return {
            self._ledger.first_physical_offset(topic, broker, int(number)): offset
            for topic, brokers in tree.items()
            for broker, queues in brokers.items()
            for number, offset in queues.items()
        }

    def _is_behind_the_end(self, topic, offset):
        return offset >= self._ending.get(topic, inf)

    def _committed(self):
        return {
            body
            for batch, found in self._batches.items()
            if batch <= self._last_committed
            for body in found
        }


class ReadModel(RowModel):
    """The state of one program of batch reads."""

    def __init__(self, ledger, program):
        super().__init__(ledger, program)
        self._began_at = 0.0

    def began(self):
        """Record the start of a read."""
        self._began_at = self._ledger.now

    def ran(self, parts):
        """Check the rows when all tasks of a read have ended."""
        left = self._missing_of(self._once(parts), 0.0, self._began_at)
        if left:
            self.complain(f"it has read all there is without {left}")

    def ran_again(self, parts, before):
        """Check a second action on the same data frame."""
        rows, first = self._once(parts), self._once(before)
        for body, place in (first | rows).items():
            if (body in first) is not (body in rows) and not self._may_differ(
                place, self._name(body)
            ):
                self.complain(f"one action has it, and one has not: {self._name(body)} at {place}")
