"""Acts of group members: heartbeats, offsets, locks, and messages sent back."""

from world.acts import QUEUES, TOPICS, act, group, place
from world.acts.pulls import Asked, pull_once

from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    SubscriptionData,
)
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message_queue import MessageQueue

TRIES_MAX = 2
_FIRST_RETRY_LEVEL = 3


@act(lambda dice: {"group": group(dice)})
async def heartbeat(player, group):
    """Send a heartbeat for a group, and thereby join it."""
    topics = [SubscriptionData(topic=f"T{number}") for number in range(TOPICS)]
    consumer = ConsumerData(group_name=group, subscription_data_set=tuple(topics))
    data = HeartbeatData(client_id=player.name, consumer_data_set=(consumer,))
    await player.ask(RequestCode.HEART_BEAT, body=encode_body(data))


@act(lambda dice: {"group": group(dice)})
async def leave_group(player, group):
    await player.ask(RequestCode.UNREGISTER_CLIENT, clientID=player.name, consumerGroup=group)


@act(lambda dice: {**place(dice), "where": dice.random(), "group": group(dice)})
async def commit(player, topic, queue_id, where, group):
    """Commit an offset that a consumer can have reached, and query it."""
    offsets = player.world.offsets
    key = group, topic, queue_id
    told = offsets.asked(key, int(player.ledger.queues[topic, queue_id].certain_end * where))
    answer = await player.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup=group,
        topic=topic,
        queueId=queue_id,
        commitOffset=told.offset,
    )
    offsets.answered(told, is_done=answer is not None and answer.code == 0)
    await query_offset(player, key)


async def query_offset(player, key):
    """Query a group's committed offset."""
    group, topic, queue_id = key
    before = player.world.offsets.allowed(key)
    answer = await player.ask(
        RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=queue_id
    )
    if answer is not None and answer.code in (0, ResponseCode.QUERY_NOT_FOUND):
        found = int(answer.ext_fields["offset"]) if answer.code == 0 else None
        player.world.offsets.queried(key, before, found)


@act(lambda dice: {"group": group(dice), "queue_ids": [dice.randrange(QUEUES) for _ in range(2)]})
async def lock(player, group, queue_ids):
    """Lock queues for a group's orderly listener; no other member may have them meanwhile."""
    locks = player.world.locks
    queues = frozenset(
        MessageQueue("T0", player.world.broker_name, queue_id) for queue_id in queue_ids
    )
    body = LockBatchRequestBody(consumer_group=group, client_id=player.name, mq_set=queues)
    answer = await player.ask(RequestCode.LOCK_BATCH_MQ, body=encode_body(body))
    if answer is None or answer.code:
        return
    held = decode_body(LockBatchResponseBody, answer.body).lock_ok_mq_set
    locks.taken(group, player.name, held)
    await player.world.tasks.sleep(0.05)
    locks.release(group, player.name, held)
    await player.ask(RequestCode.UNLOCK_BATCH_MQ, body=encode_body(body))


@act(
    lambda dice: {
        **place(dice),
        "where": dice.random(),
        "group": group(dice),
        "level": dice.choice([0, 0, 1, -1]),
    }
)
async def give_back(player, topic, queue_id, where, group, level):
    """Pull a message, and send it back."""
    start = int(player.ledger.queues[topic, queue_id].known_end * where)
    await _give_back(player, Asked(topic, queue_id, start), group, level)


@act(lambda dice: {"group": group(dice), "level": dice.choice([0, 0, 1])})
async def give_back_again(player, group, level):
    """Pull a message that was sent back before, and send it back again."""
    topic = f"%RETRY%{group}"
    known_end = player.ledger.queues[topic, 0].known_end
    if known_end:
        await _give_back(player, Asked(topic, 0, player.dice.randrange(known_end)), group, level)


async def _give_back(player, asked, group, level):
    told = await pull_once(player, asked, group=group, count=1)
    if told is None or not told.messages:
        return
    message = told.messages[0]
    sent = player.ledger.saw(message)
    tries = message.reconsume_times
    is_last = tries >= TRIES_MAX or level < 0
    given = player.ledger.returns.send_back(
        group,
        sent,
        tries,
        delay_seconds=player.world.delay_seconds(level or _FIRST_RETRY_LEVEL + tries),
        is_last=is_last,
    )
    answer = await player.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        offset=message.physical_offset,
        group=group,
        delayLevel=level,
        originMsgId="",
        originTopic=asked.topic,
        unitMode="false",
        maxReconsumeTimes=TRIES_MAX,
    )
    if answer is not None and answer.code == 0:
        player.ledger.returns.answered(given, is_done=True)
    elif answer is not None:
        player.world.watch.check_refusal(answer, f"giving back {sent}")
