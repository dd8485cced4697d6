"""Acts of sinks that commit batches: rows are staged, committed, aborted, committed again.

Each client has its own sink, and writes one batch after the other.
"""

import zlib

from world.acts import QUEUES, SIZES, act, place

from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.staged_batches import (
    CommitBatchRequestBody,
    CommittedBatch,
    StagedAttempt,
)
from rmq_spark.wire.chunk import encode_chunk
from rmq_spark.wire.chunk.sized_chunk import encode_sizes
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.members import (
    BatchRequestHeader,
    LastBatchRequestHeader,
    StageChunkRequestHeader,
)
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand

_OWNER = "query"


def _chunks(dice):
    return [
        {**place(dice), "sizes": [dice.choice(SIZES[1:5]) for _ in range(dice.choice([1, 5, 30]))]}
        for _ in range(dice.choice([1, 2, 4]))
    ]


@act(lambda dice: {"chunks": _chunks(dice), "counts": dice.random() < 0.8})
async def stage(player, chunks, counts):
    """Run one attempt of a task; the commit names it if it ``counts``."""
    batches, sink = player.ledger.batches, _sink(player)
    batch = batches.current(sink)
    if batch.state != "staged":
        await _commit(player, batch)
        return
    attempt, rows, crc = f"a{len(player.ledger.sent)}", [], 0
    for number, each in enumerate(chunks):
        connection, agreement = await player.known_agreement()
        if connection is None:
            return
        sents, body = _encoded(player, batch, agreement, **each)
        answer = await _told(
            player, connection, _chunk_request(batch, attempt, number, each, body), f"a row {batch}"
        )
        if answer is None or answer.code:
            return
        if answer.ext_fields.get("isCommitted") == "true":
            player.ledger.complain(f"{batch} was never committed, and its broker says it is")
        rows += sents
        crc = zlib.crc32(body, crc)
    if counts:
        batch.rows += rows
        batch.attempts.append(
            StagedAttempt(attempt=attempt, chunks=len(chunks), rows=len(rows), crc=crc)
        )


@act(lambda dice: {})
async def commit_batch(player):
    """Commit the staged rows, or repeat an unanswered commit."""
    batch = player.ledger.batches.current(_sink(player))
    if batch.attempts:
        await _commit(player, batch)


@act(lambda dice: {})
async def commit_batch_again(player):
    """Commit a committed batch again, which must change nothing."""
    batch = player.ledger.batches.last_committed(_sink(player))
    if batch is not None:
        await _commit(player, batch)


@act(lambda dice: {})
async def abort_batch(player):
    """Abort the batch; a committed one stays."""
    batches, sink = player.ledger.batches, _sink(player)
    batch = batches.current(sink)
    connection, _ = await player.known_agreement()
    if connection is None or not batch.attempts:
        return
    header = BatchRequestHeader(sink, batch.batch_id, _OWNER)
    request = staging_request(RequestCode.ABORT_BATCH, header)
    answer = await _told(player, connection, request, f"to abort {batch}")
    if answer is None or answer.code:
        return
    life = player.ledger.life
    last = await ask_last(player, sink)
    if last is not None and last < batch.batch_id and life == player.ledger.life:
        batches.aborted(batch)


@act(lambda dice: {"chunk": _chunks(dice)[0]})
async def stage_late(player, chunk):
    """Stage a row for a committed batch, as a slow task does; the broker must ignore it."""
    batch = player.ledger.batches.last_committed(_sink(player))
    connection, agreement = await player.known_agreement()
    if connection is None or batch is None:
        return
    _, body = _encoded(player, batch, agreement, **chunk)
    request = _chunk_request(batch, "late", 0, chunk, body)
    answer = await _told(player, connection, request, f"a late row of {batch}")
    if answer is not None and answer.code == 0 and answer.ext_fields.get("isCommitted") != "true":
        player.ledger.complain(f"{batch} is committed, and takes more rows")


@act(lambda dice: {})
async def last_batch(player):
    await ask_last(player, _sink(player))


async def ask_last(player, sink):
    """Query a sink's last committed batch: -1 if there is none, None without a response."""
    connection, _ = await player.known_agreement()
    if connection is None:
        return None
    life = player.ledger.life
    request = staging_request(RequestCode.LAST_BATCH, LastBatchRequestHeader(sink))
    answer = await _told(player, connection, request, f"the last batch of {sink}")
    if answer is None or answer.code not in (0, ResponseCode.QUERY_NOT_FOUND):
        return None
    if answer.code:
        player.ledger.batches.told_last(sink, None, 0, (), asked_in_life=life)
        return -1
    return _heard_of(player, sink, answer, life)


async def _commit(player, batch):
    batches, life = player.ledger.batches, player.ledger.life
    connection, _ = await player.known_agreement()
    if connection is None:
        return
    batches.committing(batch)
    request = staging_request(
        RequestCode.COMMIT_BATCH,
        BatchRequestHeader(batch.sink, batch.batch_id, _OWNER),
        encode_body(CommitBatchRequestBody(attempts=tuple(batch.attempts))),
    )
    answer = await _told(player, connection, request, f"the commit of {batch}")
    if answer is not None and answer.code == 0:
        _heard_of(player, batch.sink, answer, life)
    else:
        if (
            answer is not None
            and batch.state == "committed"
            and answer.code == ResponseCode.MESSAGE_ILLEGAL
            and batches.is_last(batch)
        ):
            player.ledger.complain(f"{batch} is committed, and refused: {answer.remark}")
        batches.unanswered(batch)


def _heard_of(player, sink, answer, life):
    last = decode_body(CommittedBatch, answer.body)
    player.ledger.batches.told_last(sink, last.batch_id, last.rows, last.spans, asked_in_life=life)
    return last.batch_id


async def _told(player, connection, request, what):
    answer = await player.answer(connection, request)
    if answer is not None and answer.code:
        player.world.note(f"{player.name}: {what}: {answer.code} {answer.remark}")
        player.world.watch.check_refusal(answer, what)
    return answer


def _sink(player):
    return f"sink-{player.name.replace(' ', '-')}"


def _encoded(player, batch, agreement, topic, queue_id, sizes):
    """Return rows of a batch for one queue, and the body that stages them."""
    sents = [
        player.ledger.stage(
            batch, topic, queue_id, size, {"KEYS": f"k{len(player.ledger.sent) + 1}"}
        )
        for size in sizes
    ]
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
    return sents, encode_sizes(encoded.sizes) + bytes(encoded.data)


def _chunk_request(batch, attempt, number, chunk, body):
    header = StageChunkRequestHeader(
        batch.sink,
        batch.batch_id,
        _OWNER,
        attempt,
        number,
        chunk["topic"],
        chunk["queue_id"],
        "TBW102",
        QUEUES,
    )
    return staging_request(RequestCode.STAGE_CHUNK, header, body)


def staging_request(code, header, body=b""):
    """Return a request about staged batches."""
    return RemotingCommand(code, ext_fields=HEADERS[code].request.encode(header), body=body)
