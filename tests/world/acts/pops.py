"""Acts of members that pop: they acknowledge messages, extend their invisible time, or
forget them."""

from __future__ import annotations

from typing import NamedTuple

from support.clients.pops import ack, ack_all, change, pop_fields, popped_of
from world.acts import QUEUES, TOPICS, act
from world.client import ANSWER_SECONDS

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand

_NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL)
_FORGOTTEN = RemotingCommand(ResponseCode.POLLING_TIMEOUT)


class PopGroup(NamedTuple):
    """The parameters of a group that pops."""

    is_in_order: bool
    wanted: str | None


POP_GROUPS = {
    "P0": PopGroup(is_in_order=False, wanted=None),
    "P1": PopGroup(is_in_order=True, wanted=None),
    "P2": PopGroup(is_in_order=False, wanted="A||B"),
}


def _group(dice):
    return dice.choice(list(POP_GROUPS))


@act(
    lambda dice: {
        "group": _group(dice),
        "topic": f"T{dice.randrange(TOPICS)}",
        "queue_id": dice.choice([-1, -1, dice.randrange(QUEUES)]),
        "count": dice.choice([1, 4, 32]),
        "invisible_ms": dice.choice([1_000, 2_500, 9_000]),
        "poll_ms": dice.choice([0, 0, 1_000]),
    }
)
async def pop(player, group, topic, queue_id, count, invisible_ms, poll_ms):
    """Pop messages, and keep them; return what is known of each."""
    world, pops = player.world, player.ledger.pops
    kind = POP_GROUPS[group]
    fields = pop_fields(
        topic,
        group,
        queue_id=queue_id,
        max_msg_nums=count,
        invisible_time=invisible_ms,
        poll_time=poll_ms,
        exp=kind.wanted or "*",
        exp_type="TAG",
        order=kind.is_in_order,
    )
    connection = await player.connected()
    asked_at = world.kernel.now
    pops.asked(group, topic)
    answer = await player.answer(
        connection,
        RemotingCommand(RequestCode.POP_MESSAGE, ext_fields=fields),
        ANSWER_SECONDS + poll_ms / 1_000,
    )
    if answer is None:
        pops.unanswered(group, topic, asked_at)
        return []
    if answer.code and answer.code not in _NOTHING:
        if answer.code != ResponseCode.TOPIC_NOT_EXIST:
            world.watch.check_refusal(answer, f"a pop of {topic}")
        return []
    return [(pops.saw(each, asked_at), each) for each in popped_of(answer, group)]


@act(
    lambda dice: {
        "group": _group(dice),
        "share": dice.choice([0.2, 0.7, 1.0]),
        "is_batch": dice.random() < 0.4,
    }
)
async def acknowledge(player, group, share, is_batch=False):
    """Acknowledge some of the messages that a group has, in time or late."""
    usable = player.ledger.pops.usable(group)
    chosen = [(each, each.popped) for each in usable if player.dice.random() < share]
    await acknowledge_all(player, chosen, is_batch=is_batch)


async def acknowledge_all(player, chosen, *, is_batch=True):
    """Acknowledge messages that a group has."""
    pops = player.ledger.pops
    for some in [chosen] if is_batch else [[each] for each in chosen]:
        if any(each.is_asked for each, _ in some) or not some:
            continue  # another member has acknowledged it
        sent = some
        for each, _ in sent:
            pops.acking(each)
        client = _Asking(player)
        if is_batch:
            await ack_all(client, [popped for _, popped in sent])
        else:
            await ack(client, sent[0][1])
        is_one_of_several = client.code and len(sent) > 1  # the broker may refuse any of them
        for each, popped in sent:
            pops.acked(each, popped, None if is_one_of_several else client.code)


@act(lambda dice: {"group": _group(dice), "invisible_ms": dice.choice([0, 1_000, 5_000, 9_000])})
async def change_invisible_time(player, group, invisible_ms):
    """Change the invisible time of a message that a group has."""
    pops = player.ledger.pops
    usable = pops.usable(group)
    if not usable:
        return
    known = player.dice.choice(usable)
    popped, end_ms = pops.changing(known)
    client = _Asking(player)
    await change(client, popped, invisible_ms)
    pops.changed(known, popped, end_ms, client.code)


class _Asking:
    """A client for `support.clients.pops` that keeps the code of the last response."""

    def __init__(self, player):
        self._player = player
        self.code = None

    async def ask(self, code, **parts):
        """Return the response to a request, or a failed one if none arrives."""
        connection = await self._player.connected()
        answer = await self._player.answer(connection, RemotingCommand(code, **parts))
        if answer is None:
            return _FORGOTTEN
        self.code = answer.code
        if answer.code:
            self._player.world.watch.check_refusal(answer, f"request {code} of a popped message")
        return answer
