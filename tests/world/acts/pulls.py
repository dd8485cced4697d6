"""Acts of consumers that pull: from any offset, one message or many megabytes, filtered, and held
by the broker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from support.clients.remoting_clients import pull_request
from world.acts import PASSING_TOPIC, QUEUES, act, group, place
from world.client import ANSWER_SECONDS

from rmq_spark.wire.chunk.sized_chunk import decode_sized_chunk
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message.record import decode_records

_FILTERS = {
    None: (None, lambda sent: True),
    "A": ("TAG", lambda sent: sent.tags == "A"),
    "A||B": ("TAG", lambda sent: sent.tags in ("A", "B")),
    "number < 3": ("SQL92", lambda sent: int(sent.properties["number"]) < 3),
    "TAGS = 'B' AND number IN ('1', '2')": (
        "SQL92",
        lambda sent: sent.tags == "B" and sent.properties["number"] in "12",
    ),
}


@dataclass(frozen=True)
class Asked:
    """A pull, and what its client expects."""

    topic: str
    queue_id: int
    queue_offset: int
    wanted: str | None = None

    def wants(self, what):
        sent = what[0] if isinstance(what, tuple) else what
        return _FILTERS[self.wanted][1](sent)


class Told(NamedTuple):
    """The response to a pull."""

    code: int
    remark: str
    messages: list
    next_offset: int
    min_offset: int
    max_offset: int

    def __str__(self):
        return f"{self.code} {self.remark}, {len(self.messages)} messages, on at {self.next_offset}"


def _anywhere(dice):
    return {
        **place(dice),
        "where": dice.choice([0, 0.5, 0.9, 1, 1, 1.2]),
        "wanted": dice.choice([None, None, *_FILTERS]),
        "group": group(dice),
    }


@act(lambda dice: {**_anywhere(dice), "count": dice.choice([1, 32]), "bulk": dice.random() < 0.4})
async def pull(player, topic, queue_id, where, wanted=None, group="G0", count=32, bulk=False):
    asked = _asked(player, topic, queue_id, where, wanted)
    await pull_once(player, asked, group=group, count=count, bulk=bulk)


@act(
    lambda dice: {**_anywhere(dice), "where": 1, "suspend_ms": dice.choice([1_000, 3_000, 15_000])}
)
async def wait_for_messages(player, topic, queue_id, where, suspend_ms, wanted=None, group="G0"):
    """Send a pull that the broker holds."""
    asked = _asked(player, topic, queue_id, where, wanted)
    await pull_once(player, asked, group=group, suspend_ms=suspend_ms)


@act(
    lambda dice: {
        **place(dice),
        "where": dice.choice([0, 1]),
        "seconds": dice.choice([1.0, 5.0, 20.0]),
        "suspend_ms": dice.choice([1_000, 3_000, 15_000]),
        "wanted": dice.choice([None, None, *_FILTERS]),
        "group": group(dice),
        "bulk": dice.random() < 0.3,
    }
)
async def consume(player, topic, queue_id, where, seconds, suspend_ms, wanted, group, bulk):
    """Pull repeatedly for a while, as a consumer does; the broker holds pulls at the
    queue's end."""
    world = player.world
    until = world.kernel.now + seconds
    asked = _asked(player, topic, queue_id, where, wanted)
    while world.kernel.now < until:
        told = await pull_once(player, asked, group=group, suspend_ms=suspend_ms, bulk=bulk)
        if told is None:
            await world.tasks.sleep(0.1)
        else:
            asked = replace(asked, queue_offset=told.next_offset)


@act(lambda dice: {"queue_id": dice.randrange(QUEUES), "suspend_ms": dice.choice([None, 1_000])})
async def pull_passing(player, queue_id, suspend_ms=None):
    """Pull from the temporary topic."""
    await pull_once(player, _asked(player, PASSING_TOPIC, queue_id, 0, None), suspend_ms=suspend_ms)


def _asked(player, topic, queue_id, where, wanted):
    known_end = player.ledger.queues[topic, queue_id].known_end
    return Asked(topic, queue_id, int(known_end * where), wanted)


async def pull_once(player, asked, *, group="G0", suspend_ms=None, count=32, bulk=False):
    """Pull, and let the ledger check the response; return None if there is none."""
    world, ledger = player.world, player.ledger
    connection = (await player.known_agreement())[0] if bulk else await player.connected()
    if connection is None:
        return None
    request = pull_request(
        asked.queue_offset,
        asked.topic,
        asked.queue_id,
        group=group,
        code=RequestCode.PULL_CHUNK if bulk else RequestCode.PULL_MESSAGE,
        suspend_ms=suspend_ms,
        subscription=asked.wanted or "*",
        expression_type=_FILTERS[asked.wanted][0],
        count=count,
    )
    must = ledger.expected(asked.topic, asked.queue_id, asked.queue_offset, asked.wants)
    known = ledger.expected(asked.topic, asked.queue_id, 0)
    whole = ledger.batches.whole(asked)
    asked_at = world.kernel.now
    suspend_seconds = (suspend_ms or 0) / 1000
    answer = await player.answer(connection, request, ANSWER_SECONDS + suspend_seconds)
    if answer is None or "nextBeginOffset" not in answer.ext_fields:
        if answer is not None:
            world.watch.check_refusal(answer, str(asked))
        return None
    body = decode_sized_chunk(answer.body)[1] if bulk and answer.body else answer.body
    fields = answer.ext_fields
    offsets = (int(fields[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))
    told = Told(answer.code, answer.remark, list(decode_records(body)), *offsets)
    ledger.pulled(asked, must, told)
    ledger.told_first(asked.topic, asked.queue_id, known, told.min_offset)
    ledger.batches.pulled(asked, whole, told)
    world.watch.check_wakefulness(asked, asked_at, suspend_seconds, told)
    return told
