"""Random topics that are created, grow and are deleted while a query reads them, with a ledger of
all sends.

The query runs without Spark; `spark/faults/test_stress` does the same with Spark.
"""

import os

from support.spark.streaming_engine import send

SEED = int(os.environ.get("ROCKETPOLL_SEED", "1"))
TOPICS_MAX, QUEUES_MAX = 5, 8
STEPS_MAX = 8
"""Maximum number of steps between two reads of the query."""


def rounds(default):
    """Return the number of rounds. Longer campaigns: make restarts ROUNDS=1000"""
    return int(os.environ.get("ROCKETPOLL_STRESS_ROUNDS", default))


class World:
    """The topics with a common prefix on a broker. Each kind of change is a method without
    arguments."""

    def __init__(self, broker, dice, query_of):
        """``query_of`` creates the query for a pattern."""
        self.dice = dice
        self.gone = []
        self._broker = broker
        self._prefix = f"stress{dice.randrange(1 << 30)}"
        self._queues = {}
        self._sent = {}
        self._made = 0
        self.query = query_of(f"{self._prefix}-.*")
        self.add_topic()

    def stress(self, steps, rounds):
        """Run rounds of a few steps and a read each; at the end the query has read everything."""
        for _ in range(rounds):
            for _ in range(self.dice.randint(1, STEPS_MAX)):
                self.dice.choice(steps)(self)
            self.query.run_a_while(self.dice)
        self.query.catch_up()

    @property
    def bodies(self):
        """Return all bodies that were ever sent."""
        return [body for bodies in self._sent.values() for body in bodies]

    # ---- steps

    def add_topic(self):
        if len(self._queues) < TOPICS_MAX:
            self._made += 1
            self._make(f"{self._prefix}-{self._made}")

    def add_data(self):
        topic = self.dice.choice(list(self._queues))
        self._sent[topic] += send(self._broker, topic, self.dice.randint(1, 20))

    def add_queues(self):
        topic = self.dice.choice(list(self._queues))
        self._queues[topic] = min(self._queues[topic] + self.dice.randint(1, 3), QUEUES_MAX)
        self._broker.create_topic(topic, self._queues[topic])

    def delete_topic(self):
        """Delete a topic; messages that no committed batch contains may be lost."""
        if len(self._queues) > 1:
            self._delete(self.dice.choice(list(self._queues)))

    def make_topic_again(self):
        topic = self.dice.choice(list(self._queues))
        with self.query.between_batches():
            self._delete(topic)
            self._make(topic)
            self._sent[topic] += send(self._broker, topic, self.dice.randint(0, 60))

    def restart_broker(self):
        if not self.dice.randrange(5):
            self._broker.restart()

    def _make(self, topic):
        self._queues[topic] = self.dice.randint(1, 4)
        self._sent.setdefault(topic, [])
        self._broker.create_topic(topic, self._queues[topic])

    def _delete(self, topic):
        committed = self.query.committed()
        self.gone += [body for body in self._sent[topic] if body not in committed]
        self._broker.delete_topic(topic)
        del self._queues[topic]


CALM = (World.add_topic, World.add_data, World.add_data, World.add_queues, World.restart_broker)
WILD = (*CALM, World.delete_topic, World.make_topic_again)
