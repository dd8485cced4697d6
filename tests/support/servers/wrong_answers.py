"""Well-formed but wrong responses, from servers in front of an honest embedded broker.

WrongBroker    to pulls, as RocketMQ's brokers or as ours, which have sizes in front of records, or
               places instead, once it has proven that the files are its own; and to other requests
WrongNames     to all requests for the addresses of brokers
"""

import socket
import threading
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
from support.servers.fake_servers import FakeServer, Peer

from rmq_spark.client.reading.log_files import machine_identity
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.body_codec import decode_body
from rmq_spark.wire.bodies.clients import (
    GetConsumerListByGroupResponseBody,
    LockBatchResponseBody,
    TopicRouteData,
)
from rmq_spark.wire.chunk.record_locations import decode_located, encode_locations
from rmq_spark.wire.chunk.sized_chunk import encode_sizes
from rmq_spark.wire.codes import RequestCode, ResponseCode, SerializeType
from rmq_spark.wire.extensions import proof_content
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.hosts import host_of
from rmq_spark.wire.message.record import decode_record, encode_record, record_size
from rmq_spark.wire.message_queue import MessageQueue

_NEXT = "nextBeginOffset"
_NARROW_CODE_MAX = (1 << 15) - 1


class WrongBroker(FakeServer):
    """A server that passes responses with records through ``lie(dice, records, fields)``.

    ``left`` limits the number of wrong responses from now on; later ones are right. Responses with
    places become ``places(dice, places, sizes, fields)``, and responses to requests of a code
    ``answers[code](dice, answer)``.
    """

    def __init__(self, broker, lie=None, *, is_ours=False, places=None, answers=None):
        self._broker, self._lie, self._is_ours = broker, lie, is_ours
        self._places, self._answers = places, answers or {}
        self.dice, self.left = None, 0
        super().__init__(self._between)

    def _between(self, peer):
        """Forward requests; another thread returns responses, which may take long, and the broker's
        own requests."""
        asked = {}
        with closing(_connection_to(self._broker)) as connection:
            behind = Peer(connection)
            back = threading.Thread(target=self._retry_message, args=(peer, behind, asked))
            back.start()
            try:
                while (request := peer.receive()) is not None:
                    if request.code == RequestCode.EXTENSIONS and not self._is_ours:
                        peer.send(request.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "what?"))
                        continue
                    asked[request.opaque] = request
                    behind.send(request)
            finally:
                behind.close()
                back.join()

    def _retry_message(self, peer, behind, asked):
        try:
            while (answer := behind.receive()) is not None:
                if answer.is_response:
                    answer = self._changed(asked.pop(answer.opaque), answer, peer.socket)
                peer.send(answer)
        except OSError:
            pass
        except BaseException as error:
            self.fault = error
        finally:
            peer.close()

    def _changed(self, request, answer, sock):
        if self._lie and request.code in (RequestCode.PULL_MESSAGE, RequestCode.PULL_CHUNK):
            return self._error(answer, has_sizes=request.code == RequestCode.PULL_CHUNK)
        if self._places and request.code == RequestCode.PULL_PLACES:
            return self._elsewhere(answer)
        if self._places and "nonce" in request.ext_fields:
            self._prove(request.ext_fields["nonce"], sock, answer.ext_fields)
        elif self.left and request.code in self._answers:
            self.left -= 1
            return self._answers[request.code](self.dice, answer)
        return answer

    def _prove(self, nonce, sock, fields):
        """Write the proof of an honest broker, because the directory is its own."""
        ends = host_of(sock.getsockname()), host_of(sock.getpeername())
        proof = Path(fields["storeDirectory"], fields["proofName"])
        proof.write_bytes(proof_content(nonce, *ends, machine_identity()))

    def _elsewhere(self, answer):
        if answer.code != ResponseCode.SUCCESS or not self.left:
            return answer
        self.left -= 1
        return with_wrong_places(self.dice, self._places, answer)

    def _error(self, answer, *, has_sizes):
        if answer.code != ResponseCode.SUCCESS or not self.left:
            return answer
        self.left -= 1
        return with_wrong_records(self.dice, self._lie, answer, has_sizes=has_sizes)


class WrongNames(FakeServer):
    """A name server that replaces addresses in each response of another one."""

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


def with_wrong_records(dice, lie, answer, *, has_sizes):
    """Return a pull response whose records a lie of `LIES` has changed."""
    body, records = bytes(answer.body), []
    at = 4 + 4 * int.from_bytes(body[:4], "big") if has_sizes else 0
    while at < len(body):
        records.append(body[at : at + record_size(body, at)])
        at += len(records[-1])
    fields = dict(answer.ext_fields)
    records = lie(dice, records, fields)
    front = encode_sizes([len(each) for each in records]) if has_sizes else b""
    return answer._replace(body=front + b"".join(records), ext_fields=fields)


def with_wrong_places(dice, lie, answer):
    """Return a response whose places a lie of `PLACE_LIES` has changed."""
    found, fields = decode_located(answer.body), dict(answer.ext_fields)
    if found.physical_offsets is None:
        return answer
    places, sizes = lie(dice, found.physical_offsets, found.sizes, fields)
    return answer._replace(body=encode_locations(places, sizes), ext_fields=fields)


def _connection_to(broker):
    host, port = broker.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)))


def _changed(record, start, end, number):
    return record[:start] + number.to_bytes(end - start, "big") + record[end:]


def _one(change):
    """Return a lie that changes one of the records."""

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


def _all_shifted(more, _dice, records, _fields):
    """Add the same difference to all record offsets."""
    start = layout.QUEUE_OFFSET_AT
    return [_changed(each, start, start + 8, max(_offset_of(each) + more, 0)) for each in records]


def _all_of_other_offsets(dice, records, fields):
    return _all_shifted(dice.choice([-1, 1 << 32]), dice, records, fields)


def _twice(_dice, records, at):
    return [records[at], records[at]]


def _left_out(_dice, _records, _at):
    return []


def _once_more(_dice, records, at):
    return [records[max(at - 1, 0)]]


def _cut(dice, records, at):
    return [records[at][: -dice.randint(1, 40)]]


def _another_body(dice, records, at):
    """Change some bytes of the body, but not its CRC.

    A single changed bit is not enough: the check of many bodies at once misses the same damage to
    two of them.
    """
    body = bytes(decode_record(records[at], check_crc=False).body)
    start = records[at].index(body)
    wrong = bytes(each ^ dice.randrange(256) for each in body[:-1]) + bytes([body[-1] ^ 1])
    return [records[at][:start] + wrong + records[at][start + len(body) :]]


def _mixed(dice, records, _fields):
    return dice.sample(records, len(records))


def _none(_dice, _records, _fields):
    return []


def _of_topic(topic, record):
    return encode_record(replace(decode_record(record), topic=topic))


def _another_topic(dice, records, at):
    return [_of_topic(dice.choice(["payroll", "%RETRY%G", "T" * 127]), records[at])]


def _all_of_another_topic(dice, records, _fields):
    topic = dice.choice(["payroll", "%DLQ%G"])
    return [_of_topic(topic, each) for each in records]


LIES = {
    "another topic": _one(_another_topic),
    "all of another topic": _all_of_another_topic,
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
    "all of other offsets": _all_of_other_offsets,
    "all of the next offsets": partial(_all_shifted, 1),
}
"""Lies about the records of a response, by name."""


def _shifted(dice, places, sizes, _fields):
    return places + dice.choice([-1, 1, 1 << 20, 1 << 40, -(1 << 40)]), sizes


def _in_another_order(dice, places, sizes, _fields):
    order = np.array(dice.sample(range(len(places)), len(places)))
    return places[order], sizes[order]


def _of_the_next(_dice, places, sizes, fields):
    """Make each place point at the next record, perhaps of another queue, and the last at the
    first."""
    return np.roll(places, -1), np.roll(sizes, -1)


def _at_the_start_of_the_log(_dice, places, sizes, _fields):
    """Point at the records of another topic."""
    return places - places[0], sizes


def _larger(dice, places, sizes, _fields):
    return places, sizes * dice.choice([2, 1 << 15])


def _fewer(dice, places, sizes, _fields):
    count = dice.randint(1, max(len(places) - 1, 1))
    return places[:count], sizes[:count]


def _places_further(dice, places, sizes, fields):
    fields[_NEXT] = str(int(fields[_NEXT]) + dice.choice([1, 2, 1 << 40]))
    return places, sizes


PLACE_LIES = {
    "shifted": _shifted,
    "in another order": _in_another_order,
    "of the next": _of_the_next,
    "at the start of the log": _at_the_start_of_the_log,
    "larger": _larger,
    "fewer": _fewer,
    "goes on later": _places_further,
}
"""Lies about places in a log, by name."""


_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.PULL_CHUNK)
_SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.APPEND_CHUNK,
)


def _number(name):
    def lie(dice, answer):
        number = dice.choice([-1, 0, 1, 5, 1 << 31, (1 << 63) - 1, -(1 << 63)])
        return answer._replace(ext_fields={**answer.ext_fields, name: str(number)}, code=0)

    return lie


def _moved(dice, answer):
    """Answer that the offset does not exist, and that the queue begins elsewhere."""
    fields = {**answer.ext_fields, _NEXT: str(dice.choice([0, 3, 1_000, 1 << 40]))}
    return answer._replace(code=ResponseCode.PULL_OFFSET_MOVED, ext_fields=fields, body=b"")


def _foreign_members(dice, answer):
    members = dice.choice([(), ("10.0.0.9@1",), ("", "a" * 5_000), ("\0", "10.0.0.9@1")])
    body = encode_body(GetConsumerListByGroupResponseBody(consumer_id_list=members))
    return answer._replace(code=0, body=body)


def _foreign_locks(_dice, answer):
    queues = frozenset([MessageQueue("payroll", "broker-b", 7), MessageQueue("", "", -1)])
    return answer._replace(code=0, body=encode_body(LockBatchResponseBody(lock_ok_mq_set=queues)))


def _nothing_at_all(_dice, answer):
    return answer._replace(code=0, ext_fields={}, body=b"")


def _another_refusal(dice, answer):
    return _with_code(answer, dice.choice([1, 17, 26, 2_047, -5, 99_999]))._replace(remark="no")


def _with_code(answer, code):
    """Replace the response code, capped at the 16 bits of RocketMQ's binary header."""
    is_narrow = answer.serialize_type == SerializeType.ROCKETMQ
    return answer._replace(code=min(code, _NARROW_CODE_MAX) if is_narrow else code)


ANSWER_LIES = {
    "foreign members": {RequestCode.GET_CONSUMER_LIST_BY_GROUP: _foreign_members},
    "foreign locks": {RequestCode.LOCK_BATCH_MQ: _foreign_locks},
    "other ends": {RequestCode.GET_MAX_OFFSET: _number("offset")},
    "other starts": {RequestCode.GET_MIN_OFFSET: _number("offset")},
    "other committed offsets": {RequestCode.QUERY_CONSUMER_OFFSET: _number("offset")},
    "other offsets of times": {RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _number("offset")},
    "other bounds of pulls": dict.fromkeys(_PULLS, _number("minOffset")),
    "other ends in pulls": dict.fromkeys(_PULLS, _number("maxOffset")),
    "pulls that go on anywhere": dict.fromkeys(_PULLS, _number("nextBeginOffset")),
    "pulls from elsewhere": dict.fromkeys(_PULLS, _moved),
    "nothing in answers": dict.fromkeys(
        [
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.LOCK_BATCH_MQ,
            RequestCode.GET_MAX_OFFSET,
            RequestCode.GET_MIN_OFFSET,
            RequestCode.QUERY_CONSUMER_OFFSET,
            RequestCode.PULL_MESSAGE,
        ],
        _nothing_at_all,
    ),
    "refusals of all kinds": dict.fromkeys(
        [
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.LOCK_BATCH_MQ,
            RequestCode.QUERY_CONSUMER_OFFSET,
            RequestCode.PULL_MESSAGE,
            RequestCode.HEART_BEAT,
        ],
        _another_refusal,
    ),
}
"""Lies in responses to other requests, by name."""

SEND_LIES = {
    "other offsets of sends": dict.fromkeys(_SENDS, _number("queueOffset")),
    "other queues of sends": dict.fromkeys(_SENDS, _number("queueId")),
    "nothing in answers to sends": dict.fromkeys(_SENDS, _nothing_at_all),
    "refusals of sends": dict.fromkeys(_SENDS, _another_refusal),
}
"""Lies in responses to sends, by name."""


def _another_opaque(dice, answer):
    return answer._replace(opaque=answer.opaque ^ (1 << dice.randrange(20, 31)))


def _a_request(_dice, answer):
    """Set the flag of a request."""
    return answer._replace(flag=answer.flag & ~1)


def _a_one_way_response(_dice, answer):
    return answer._replace(flag=answer.flag | 2)


def _another_code(dice, answer):
    return _with_code(answer, dice.choice([3, 209, 2_999, 1 << 30, -1]))


FRAME_LIES = {
    "another opaque": _another_opaque,
    "the flag of a request": _a_request,
    "the flag of a one-way response": _a_one_way_response,
    "an unknown code": _another_code,
}
"""Lies in responses to requests of any code, by name."""


def _route_lie(change):
    def lie(dice, answer):
        if answer.code != ResponseCode.SUCCESS:
            return answer
        route = change(dice, decode_body(TopicRouteData, answer.body))
        return answer._replace(body=encode_body(route))

    return {RequestCode.GET_ROUTEINFO_BY_TOPIC: lie}


def _with_queues(count_of):
    def change(dice, route):
        queues = tuple(
            replace(each, read_queue_nums=count, write_queue_nums=count)
            for each in route.queue_datas
            for count in [count_of(dice, each)]
        )
        return replace(route, queue_datas=queues)

    return _route_lie(change)


def _a_broker_that_is_not_there(dice, route):
    """Give one broker another name, and an address where nothing listens."""
    name = dice.choice(route.broker_datas).broker_name
    wrong = f"{name}-of-nobody"
    return replace(
        route,
        queue_datas=tuple(
            replace(each, broker_name=wrong) if each.broker_name == name else each
            for each in route.queue_datas
        ),
        broker_datas=tuple(
            replace(each, broker_name=wrong, broker_addrs={0: "127.0.9.9:10911"})
            if each.broker_name == name
            else each
            for each in route.broker_datas
        ),
    )


def _without_a_broker(dice, route):
    name = dice.choice(route.broker_datas).broker_name
    return replace(
        route,
        queue_datas=tuple(each for each in route.queue_datas if each.broker_name != name),
        broker_datas=tuple(each for each in route.broker_datas if each.broker_name != name),
    )


ROUTE_LIES = {
    "fewer queues": _with_queues(lambda dice, each: dice.randint(0, each.read_queue_nums)),
    "more queues": _with_queues(lambda dice, each: each.read_queue_nums + dice.choice([1, 3])),
    "a broker that is not there": _route_lie(_a_broker_that_is_not_there),
    "one broker less": _route_lie(_without_a_broker),
}
"""Lies about routes, by name."""
