"""Acts of operators and their tools: creating and deleting topics, queries by key
and id, tables.
"""

from world.acts import PASSING_TOPIC, QUEUES, act, place
from world.client import topic_fields

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message.record import decode_records

_QUESTIONS = {
    "runtime info": (RequestCode.GET_BROKER_RUNTIME_INFO, {}),
    "topics": (RequestCode.GET_ALL_TOPIC_CONFIG, {}),
    "groups": (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}),
    "offsets": (RequestCode.GET_ALL_CONSUMER_OFFSET, {}),
    "delays": (RequestCode.GET_ALL_DELAY_OFFSET, {}),
    "route": (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T0"}),
    "cluster": (RequestCode.GET_BROKER_CLUSTER_INFO, {}),
    "topic stats": (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T0"}),
    "consume stats": (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G0", "topic": "T0"}),
    "clean": (RequestCode.DELETE_EXPIRED_COMMITLOG, {}),
    "clean queues": (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, {}),
}


@act(lambda dice: {"what": dice.choice(list(_QUESTIONS))})
async def ask_for(player, what):
    code, fields = _QUESTIONS[what]
    answer = await player.ask(code, **fields)
    if answer is not None:
        player.world.watch.check_refusal(answer, what)


@act(lambda dice: {"queues": QUEUES})
async def make_topic(player, queues):
    await player.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC, **topic_fields(PASSING_TOPIC, queues, queues)
    )


@act(lambda dice: {})
async def delete_topic(player):
    """Delete the temporary topic."""
    if PASSING_TOPIC in player.ledger.uncertain_topics:
        return  # another client is deleting it
    player.ledger.deleting(PASSING_TOPIC)
    answer = await player.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=PASSING_TOPIC, seconds=30)
    if answer is not None and answer.code == 0:
        player.ledger.deleted(PASSING_TOPIC)


@act(lambda dice: {"where": dice.random()})
async def query_by_key(player, where):
    """Query one message by its key."""
    sents = list(player.ledger.sent.values())
    if not sents:
        return
    sent = sents[int(where * len(sents))]
    must, watch = player.ledger.is_to_be_found(sent), player.world.watch
    asked_at = player.world.kernel.now - watch.slack_seconds
    answer = await player.ask(
        RequestCode.QUERY_MESSAGE,
        topic=sent.topic,
        key=sent.properties["KEYS"],
        maxNum=8,
        beginTimestamp=0,
        endTimestamp=(1 << 63) - 1,
    )
    if answer is None or answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
        if answer is not None:
            watch.check_refusal(answer, f"a query for {sent}")
        return
    found = list(decode_records(answer.body)) if answer.code == 0 else []
    for message in found:
        player.ledger.saw(message)
    is_there = any(message.body == sent.body for message in found)
    if (
        must
        and not is_there
        and player.ledger.is_to_be_found(sent)
        and watch.is_calm_since(asked_at)
    ):
        player.ledger.complain(f"{sent} is not found by its key: {answer.code} {answer.remark}")


@act(lambda dice: {**place(dice), "where": dice.random()})
async def offset_by_time(player, topic, queue_id, where):
    """Query the offset of a store time in a queue."""
    now_ms = int(player.world.threads.wall_seconds() * 1000)
    began_ms = now_ms - int(player.world.kernel.now * 1000)
    answer = await player.ask(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        topic=topic,
        queueId=queue_id,
        timestamp=began_ms + int((now_ms - began_ms) * where),
    )
    if answer is not None and answer.code == 0 and int(answer.ext_fields["offset"]) < 0:
        player.ledger.complain(
            f"a time lies at {answer.ext_fields['offset']} of {topic}/{queue_id}"
        )
