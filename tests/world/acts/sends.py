"""Acts of producers: single, delayed, one-way and concurrent sends, batches, encoded chunks."""

from support.clients.remoting_clients import send_request
from world.acts import PASSING_TOPIC, QUEUES, SIZES, TOPICS, act, place

from rmq_spark.wire.chunk import encode_chunk
from rmq_spark.wire.chunk.sized_chunk import encode_sizes
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.members import AppendChunkRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.message_batch import BatchedMessage, encode_batch
from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.remoting.command import RemotingCommand

_OPEN = {
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.SYSTEM_ERROR,
}
"""Response codes after which the message may or may not be stored."""

_NO_ROOM = "the disk is full: "
"""Beginning of remarks that make any code a refusal: the broker wipes the written bytes before it
responds."""

_PLACE_DIGITS = 16
"""Number of digits of the physical offset at the end of a message id."""


def _size(dice):
    return dice.choice(SIZES[1 : dice.choice([4, 6, 7])])


def _sizes(dice, *counts):
    return [dice.choice(SIZES[1:5]) for _ in range(dice.choice(counts))]


def _small(dice):
    return {**place(dice), "size": _size(dice), "tags": dice.choice([None, "A", "B"])}


@act(lambda dice: {**_small(dice), "waits": dice.random() < 0.8, "code": dice.choice([10, 310])})
async def send(player, topic, queue_id, size, tags=None, waits=True, code=310):
    await _send(player, topic, queue_id, size, tags, waits=waits, code=code)


@act(lambda dice: {"queue_id": dice.randrange(QUEUES), "size": _size(dice)})
async def send_passing(player, queue_id, size):
    """Send to the temporary topic."""
    await _send(player, PASSING_TOPIC, queue_id, size)


@act(lambda dice: {**_small(dice), "level": dice.randint(1, 4)})
async def send_delayed(player, topic, queue_id, size, level, tags=None):
    await _send(player, topic, queue_id, size, tags, delay_level=level)


@act(lambda dice: {**_small(dice), "delay_ms": dice.choice([1, 300, 1_000, 2_500, 9_000])})
async def send_timer(player, topic, queue_id, size, delay_ms, tags=None):
    await _send(player, topic, queue_id, size, tags, delay_ms=delay_ms)


@act(_small)
async def send_one_way(player, topic, queue_id, size, tags=None):
    connection = await player.connected()
    sent = _new(player, connection, topic, queue_id, size, tags)
    connection.tell(_request(sent))
    player.ledger.unknown(sent)


@act(
    lambda dice: {
        "topic": f"T{dice.randrange(TOPICS)}",
        "queue_ids": [dice.randrange(QUEUES) for _ in range(dice.choice([2, 5, 20]))],
        "size": _size(dice),
        "waits": dice.random() < 0.9,
        "delay_level": dice.choice([0, 0, 0, 1]),
    }
)
async def burst(player, topic, queue_ids, size, waits=True, delay_level=0):
    """Send many messages concurrently, some of them delayed."""
    connection = await player.connected()
    sents, requests = [], []
    for number, queue_id in enumerate(queue_ids):
        level = delay_level if number % 3 == 1 else 0
        sent = _new(player, connection, topic, queue_id, size, None, delay_level=level)
        sents.append(sent)
        requests.append(_request(sent, waits=waits, delay_level=level))
    for sent, promise in zip(sents, connection.ask_all(requests), strict=True):
        answer = await player.awaited(connection, promise, str(sent))
        _told(player, [sent], answer, waits=waits)


@act(lambda dice: {**place(dice), "sizes": _sizes(dice, 1, 3, 12), "waits": dice.random() < 0.8})
async def batch(player, topic, queue_id, sizes, waits=True):
    connection = await player.connected()
    sents = [_new(player, connection, topic, queue_id, size, None) for size in sizes]
    request = send_request(
        encode_batch(BatchedMessage(sent.body, sent.properties_text) for sent in sents),
        topic,
        queue_id,
        code=RequestCode.SEND_BATCH_MESSAGE,
        properties={} if waits else {"WAIT": "false"},
        batch=True,
    )
    _told(player, sents, await player.answer(connection, request), waits=waits)


@act(lambda dice: {**place(dice), "sizes": _sizes(dice, 1, 5, 40)})
async def chunk(player, topic, queue_id, sizes):
    connection, agreement = await player.known_agreement()
    if connection is None:
        return
    sents = [_new(player, connection, topic, queue_id, size, None) for size in sizes]
    encoded = encode_chunk(
        {
            "topic": topic,
            "queueId": queue_id,
            "body": [sent.body for sent in sents],
            "properties": [sent.properties for sent in sents],
            "bornHost": agreement.born_host,
            "storeHost": agreement.store_host,
        }
    )
    header = AppendChunkRequestHeader("P", topic, queue_id, "TBW102", QUEUES)
    request = RemotingCommand(
        RequestCode.APPEND_CHUNK,
        ext_fields=HEADERS[RequestCode.APPEND_CHUNK].request.encode(header),
        body=encode_sizes(encoded.sizes) + bytes(encoded.data),
    )
    answer = await player.answer(connection, request)
    stored = len(sents) if answer is None or answer.code else int(answer.ext_fields["messageCount"])
    _told(player, sents[:stored], answer, waits=True)
    for sent in sents[stored:]:  # the disk became full within the batch
        player.ledger.refused(sent)


async def _send(
    player, topic, queue_id, size, tags=None, *, waits=True, delay_level=0, delay_ms=0, code=310
):
    connection = await player.connected()
    sent = _new(
        player, connection, topic, queue_id, size, tags, delay_level=delay_level, delay_ms=delay_ms
    )
    request = _request(sent, waits=waits, delay_level=delay_level, code=code)
    answer = await player.answer(connection, request)
    _told(player, [sent], answer, waits=waits or delay_level or delay_ms)


def _new(player, connection, topic, queue_id, size, tags, *, delay_level=0, delay_ms=0):
    properties = {"KEYS": f"k{len(player.ledger.sent) + 1}"}
    if tags:
        properties["TAGS"] = tags
    if delay_ms:
        properties["TIMER_DELAY_MS"] = str(delay_ms)
    delay_seconds = player.world.delay_seconds(delay_level) + delay_ms / 1_000
    return player.ledger.send(
        connection, topic, queue_id, size, properties, delay_seconds=delay_seconds
    )


def _request(sent, *, waits=True, delay_level=0, code=RequestCode.SEND_MESSAGE_V2):
    more = {} if waits else {"WAIT": "false"}
    if delay_level:
        more["DELAY"] = str(delay_level)
    text = encode_properties({**sent.properties, **more})
    return send_request(
        sent.body, sent.topic, sent.queue_id, properties=text, code=code, queue_nums=QUEUES
    )


def _told(player, sents, answer, *, waits):
    """Return the result of a send."""
    ledger = player.ledger
    if answer is not None and answer.code:
        player.world.note(f"{player.name}: {sents[0]}: {answer.code} {answer.remark}")
        player.world.watch.check_refusal(answer, str(sents[0]))
    if answer is not None and answer.code and (answer.remark or "").startswith(_NO_ROOM):
        for sent in sents:
            ledger.refused_without_room(sent)
    elif answer is None or answer.code in _OPEN:
        for sent in sents:
            ledger.unknown(sent)
    elif answer.code:
        for sent in sents:
            ledger.refused(sent)
    else:
        first = int(answer.ext_fields["queueOffset"])
        ids = [each for each in answer.ext_fields.get("msgId", "").split(",") if each]
        for number, sent in enumerate(sents):
            ledger.stored(sent, first + number, waits=waits)
            if len(ids) == len(sents) and not sent.delay_seconds:
                sent.physical_offset = int(ids[number][-_PLACE_DIGITS:], 16)
