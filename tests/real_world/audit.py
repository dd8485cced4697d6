"""An audit: a client that reads all messages of a broker after each start, and reports them to the
ledger."""

from world.acts import GROUPS, QUEUES
from world.acts.groups import query_offset
from world.acts.pulls import Asked, pull_once
from world.acts.staging import ask_last
from world.player import Player
from world.story import Client

from rmq_spark.wire.codes import RequestCode

_ASK_AGAIN_SECONDS = 0.2


class Audit:
    """One audit, with its own client."""

    def __init__(self, world):
        self._world = world
        self._ledger = world.ledger
        self._player = Player(world, Client("auditor", ()))
        self._life = world.life
        self._ends = {}

    async def look(self):
        """Check queues, offsets and names. If the broker dies meanwhile, the audit does not end."""
        for topic, queue_id in self._queues():
            await self._read(topic, queue_id)
        for key in self._world.offsets.known():
            await query_offset(self._player, key)
            await self._check_is_within(*key)
        for sink in self._ledger.batches.sinks():
            await ask_last(self._player, sink)
        self._ledger.batches.audited()
        await self._world.names.audit(self._player)
        self._player.leave()

    def _queues(self):
        """Return all queues that are known, or must exist."""
        groups = [f"G{number}" for number in range(GROUPS)]
        own = [(f"{prefix}{group}", 0) for group in groups for prefix in ("%RETRY%", "%DLQ%")]
        topics = dict.fromkeys(sent.topic for sent in self._ledger.sent.values())
        sent_to = [(topic, queue_id) for topic in topics for queue_id in range(QUEUES)]
        return dict.fromkeys([*self._ledger.queues, *sent_to, *own])

    async def _read(self, topic, queue_id):
        """Read a queue from its start to its end."""
        must = self._ledger.expected(topic, queue_id, 0)
        found, told, low = {}, None, 0
        while told is None or told.next_offset < told.max_offset:
            told = await self._pull(Asked(topic, queue_id, told.next_offset if told else 0), must)
            if told is None:
                return
            found |= {message.queue_offset: None for message in told.messages}
            low = max(low, told.min_offset)  # a file may expire during the read
        self._ledger.audited(topic, queue_id, must, found, low, told.max_offset)
        self._ends[topic, queue_id] = told.max_offset
        gap = next((offset for offset in range(low, told.max_offset) if offset not in found), None)
        if gap is not None:  # a pull from there reports the same queue
            await self._pull(Asked(topic, queue_id, gap), {})

    async def _pull(self, asked, must):
        """Return a pull's result; None if the topic does not exist and need not, or if the broker
        has died."""
        told = await pull_once(self._player, asked, group="auditor")
        if told is None and must:
            await self._world.tasks.sleep(_ASK_AGAIN_SECONDS)
            told = await pull_once(self._player, asked, group="auditor")
            if told is None and self._life is self._world.life and self._world.is_serving:
                self._ledger.complain(
                    f"{len(must)} messages of {asked.topic}/{asked.queue_id} cannot be had: "
                    f"{self._world.watch.last_refusal}"
                )
        return told

    async def _check_is_within(self, group, topic, queue_id):
        """Check that no committed offset is past the end of its queue."""
        code = RequestCode.QUERY_CONSUMER_OFFSET
        answer = await self._player.ask(code, consumerGroup=group, topic=topic, queueId=queue_id)
        if answer is not None and answer.code == 0 and (topic, queue_id) in self._ends:
            offset, end = int(answer.ext_fields["offset"]), self._ends[topic, queue_id]
            if offset > max(end, self._ledger.queues[topic, queue_id].certain_end):
                self._ledger.complain(
                    f"{group} is at {offset} of {topic}/{queue_id}, which ends at {end}"
                )
