"""Acts of transactional producers: half messages, their ends, and answers to checks.

A producer decides once. It may end the transaction too late, or be killed before: then the broker
checks with any client of the group, and each knows the decision.
"""

from support.clients.remoting_clients import send_request
from world.acts import QUEUES, SIZES, act, place
from world.messages import number_of

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import HeartbeatData, ProducerData
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.members import EndTransactionRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.message_id import decode_offset_message_id
from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message.record import decode_record
from rmq_spark.wire.remoting.command import RemotingCommand

PRODUCERS = "committers"
_ENDS = {"commit": 8, "rollback": 12}
_POLL_SECONDS = 0.2
_BORN = "g"


@act(
    lambda dice: {
        **place(dice),
        "size": dice.choice(SIZES[1:6]),
        "end": dice.choice(["commit", "commit", "rollback"]),
        "how": dice.choice(["asked", "asked", "twice", "one-way", "never"]),
        "immunity": dice.choice([None, None, None, 1]),
    }
)
async def transact(player, topic, queue_id, size, end, how, immunity=None):
    """Send a half message and, unless a trouble prevents it, its end."""
    await join(player)
    connection = await player.connected()
    properties = {"KEYS": f"k{len(player.ledger.sent) + 1}"}
    sent = player.ledger.prepare(connection, topic, queue_id, size, properties)
    answer = await player.answer(connection, _half_request(player, sent, immunity))
    if answer is None or answer.code:
        # The message may be stored; the producer does not go on with the transaction.
        player.ledger.unknown(sent)
        player.ledger.decide(sent, "rollback")
        return
    player.ledger.stored(sent, int(answer.ext_fields["queueOffset"]))
    player.ledger.decide(sent, end)
    if how == "never":
        return
    _, position = decode_offset_message_id(answer.ext_fields["msgId"])
    request = _end_request(sent, int(answer.ext_fields["queueOffset"]), position)
    if how == "one-way":
        connection.tell(request)
        return
    ended = await player.answer(connection, request)
    if ended is not None and not ended.code:
        sent.ended_at = player.world.kernel.now
    if how == "twice":
        again = _end_request(sent, int(answer.ext_fields["queueOffset"]), position)
        await player.answer(connection, again)


@act(lambda dice: {"seconds": dice.choice([0.5, 2.0, 6.0])})
async def answer_checks(player, seconds):
    """Stay in the group for a while, and answer the broker's checks."""
    until = player.world.kernel.now + seconds
    while player.world.kernel.now < until:
        await join(player)
        connection = await player.connected()
        await player.world.tasks.sleep(_POLL_SECONDS)
        answer_all(player, connection)


def answer_all(player, connection):
    """Answer the checks that have arrived on a connection."""
    notices, connection.notices = connection.notices, []
    for notice in notices:
        if notice.code != RequestCode.CHECK_TRANSACTION_STATE:
            continue
        header = HEADERS[notice.code].request.decode(notice.ext_fields)
        sent = player.ledger.checked(number_of(decode_record(notice.body).body))
        if sent.end == "open":
            player.ledger.decide(sent, "rollback")
        connection.tell(
            _end_request(sent, header.tran_state_table_offset, header.commit_log_offset)
        )


async def join(player):
    """Become a client of the producer group."""
    producer = ProducerData(group_name=PRODUCERS)
    data = HeartbeatData(client_id=player.name, producer_data_set=(producer,))
    await player.ask(RequestCode.HEART_BEAT, body=encode_body(data))


def _half_request(player, sent, immunity):
    more = {"TRAN_MSG": "true", "PGROUP": PRODUCERS, "UNIQ_KEY": f"u{sent.number}"}
    if immunity is not None:
        more["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(immunity)
    request = send_request(
        sent.body,
        sent.topic,
        sent.queue_id,
        properties=encode_properties({**sent.properties, **more}),
        sys_flag=4,
        queue_nums=QUEUES,
    )
    born_ms = int(player.world.threads.wall_seconds() * 1_000)
    return request._replace(ext_fields={**request.ext_fields, _BORN: str(born_ms)})


def _end_request(sent, queue_offset, position):
    sent.ends += 1
    header = EndTransactionRequestHeader(
        PRODUCERS, queue_offset, position, _ENDS[sent.end], str(sent.number)
    )
    code = RequestCode.END_TRANSACTION
    return RemotingCommand(code, ext_fields=HEADERS[code].request.encode(header))
