"""Answers that are wrong: behind who gives them is an embedded broker that answers rightly.

WrongBroker    to pulls, as RocketMQ's brokers or as ours, which have sizes in front of records
WrongNames     to all that tells where brokers are
"""

from __future__ import annotations

import socket
from contextlib import closing
from itertools import cycle

from fake_servers import FakeServer, Peer

from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.chunk.sized import encode_sizes
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.record import record_size

_NEXT = "nextBeginOffset"


class WrongBroker(FakeServer):
    """An address at which each answer with records is what ``lie(dice, records, fields)`` makes.

    So often, ``left`` times from now on; then answers are right.
    """

    def __init__(self, broker, lie, *, is_ours):
        self._broker, self._lie, self._is_ours = broker, lie, is_ours
        self.dice, self.left = None, 0
        super().__init__(self._between)

    def _between(self, peer):
        with closing(_connection_to(self._broker)) as connection:
            behind = Peer(connection)
            while (request := peer.receive()) is not None:
                if request.code == RequestCode.EXTENSIONS and not self._is_ours:
                    peer.send(request.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "what?"))
                    continue
                behind.send(request)
                answer = behind.receive()
                if request.code in (RequestCode.PULL_MESSAGE, RequestCode.PULL_CHUNK):
                    answer = self._wrong(answer, has_sizes=request.code == RequestCode.PULL_CHUNK)
                peer.send(answer)

    def _wrong(self, answer, *, has_sizes):
        if answer.code != ResponseCode.SUCCESS or not self.left:
            return answer
        self.left -= 1
        body, records = bytes(answer.body), []
        at = 4 + 4 * int.from_bytes(body[:4], "big") if has_sizes else 0
        while at < len(body):
            records.append(body[at : at + record_size(body, at)])
            at += len(records[-1])
        fields = dict(answer.ext_fields)
        records = self._lie(self.dice, records, fields)
        front = encode_sizes([len(each) for each in records]) if has_sizes else b""
        return answer._replace(body=front + b"".join(records), ext_fields=fields)


class WrongNames(FakeServer):
    """A name server that leads to another of some addresses with each answer, one after the
    other."""

    def __init__(self, broker, addresses):
        self._broker, self._addresses = broker, cycle(addresses)
        super().__init__(self._between)

    def _between(self, peer):
        right = self._broker.address.encode()
        with closing(_connection_to(self._broker)) as connection:
            behind = Peer(connection)
            while (request := peer.receive()) is not None:
                behind.send(request)
                answer = behind.receive()
                body = bytes(answer.body)
                if right in body:
                    body = body.replace(right, next(self._addresses).encode())
                peer.send(answer._replace(body=body))


def _connection_to(broker):
    host, port = broker.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)))


def _changed(record, start, end, number):
    return record[:start] + number.to_bytes(end - start, "big") + record[end:]


def _one(change):
    """A lie about one of the records."""

    def lie(dice, records, _fields):
        at = dice.randrange(len(records))
        records[at : at + 1] = change(dice, records, at)
        return records

    return lie


def _offset_of(record):
    start = layout.QUEUE_OFFSET_AT
    return int.from_bytes(record[start : start + 8], "big")


def _another_offset(dice, records, at):
    start = layout.QUEUE_OFFSET_AT
    number = _offset_of(records[at]) ^ (1 << dice.randrange(40))
    return [_changed(records[at], start, start + 8, number)]


def _another_queue(dice, records, at):
    return [_changed(records[at], layout.QUEUE_ID_AT, layout.QUEUE_ID_AT + 4, 1)]


def _nearer(dice, records, fields):
    fields[_NEXT] = str(int(fields[_NEXT]) - dice.randint(1, len(records)))
    return records


def _further(dice, records, fields):
    fields[_NEXT] = str(int(fields[_NEXT]) + dice.choice([1, 2, 1 << 40]))
    return records


def _all_of_another_queue(dice, records, fields):
    start = layout.QUEUE_ID_AT
    return [_changed(each, start, start + 4, 1) for each in records]


def _all_behind(dice, records, fields):
    """Those of other offsets, as many."""
    start, more = layout.QUEUE_OFFSET_AT, dice.choice([-1, 1, 1 << 32])
    return [_changed(each, start, start + 8, max(_offset_of(each) + more, 0)) for each in records]


def _twice(_dice, records, at):
    return [records[at], records[at]]


def _left_out(_dice, _records, _at):
    return []


def _once_more(_dice, records, at):
    return [records[max(at - 1, 0)]]


def _cut(dice, records, at):
    return [records[at][: -dice.randint(1, 40)]]


def _another_body(dice, records, at):
    return [records[at].replace(b"body ", dice.choice([b"BODY ", b"bodY "]), 1)]


def _mixed(dice, records, _fields):
    return dice.sample(records, len(records))


def _none(_dice, _records, _fields):
    return []


LIES = {
    "another offset": _one(_another_offset),
    "another queue": _one(_another_queue),
    "twice": _one(_twice),
    "left out": _one(_left_out),
    "an earlier one once more": _one(_once_more),
    "cut short": _one(_cut),
    "another body": _one(_another_body),
    "in another order": _mixed,
    "nothing": _none,
    "goes on earlier": _nearer,
    "goes on later": _further,
    "all of another queue": _all_of_another_queue,
    "all of other offsets": _all_behind,
}
"""What is wrong with an answer, by its name."""
