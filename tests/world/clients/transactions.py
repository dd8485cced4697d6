"""Transactions of the real client: a producer decides once, and any client of the group knows the
decision.

    begun      unseen, and rolled back if its process dies before it has decided
    commit     must come to every reader; no half message comes twice, whatever happens
    rollback   never comes to anybody

The decisions are what a database would hold: they survive the process that has made them.
"""

import time
from collections import Counter

from world.clients.acts import TOPICS, act

from rmq_spark.client.errors import ClientError
from rmq_spark.client.message import Message
from rmq_spark.client.producer.transaction_producer import TransactionProducer, TransactionState
from rocketpoll.broker.transaction.half_message import PREPARED_QUEUE_OFFSET

GROUP = "TP"
TRANSACT = "transact"
_SEND_SECONDS = 3.0 + 7.0
"""Seconds to connect and request a route, and then to send or to end a transaction."""
_START_AGAIN_SECONDS = 1.0
_UNKNOWN, _COMMIT, _ROLLBACK = (
    TransactionState.UNKNOWN,
    TransactionState.COMMIT,
    TransactionState.ROLLBACK,
)


class Transactions:
    """The decisions of all producers of a story."""

    def __init__(self, ledger, world):
        self._ledger = ledger
        self._world = world
        self._begun = {}  # process by body
        self._decided = {}  # by body
        self._halves = Counter()  # number of stored half messages by body, from the brokers' logs

    def begins(self, body, topic, process):
        """Record a half message that is about to be sent."""
        self._ledger.sends(body, topic)
        self._begun[body] = process

    def decides(self, body, state):
        """Record the decision on a transaction; all readers must get a committed message."""
        self._decided[body] = state
        if state is _COMMIT:
            self._ledger.is_acknowledged(body)

    def check(self, message):
        """Answer a check from the decisions, as a database would."""
        body = message.body
        if body not in self._begun:
            self._ledger.complain(f"a check is about {body[:24]}, which is of no transaction")
        if body not in self._decided and not self._begun[body].is_alive:
            self.decides(body, _ROLLBACK)
        return self._decided.get(body, _UNKNOWN)

    def saw(self, body, where):
        """Record a message that a reader or the audit has found in its topic."""
        if body in self._begun and self._decided.get(body) is not _COMMIT:
            self._ledger.complain(f"{body[:24]} was never committed, and is in {where}")

    def outstanding(self):
        """Return the brokers with transactions that have not ended."""
        if not self._begun:
            return []
        pending = {
            broker.name: broker.life.controller.transactions.pending_count
            for broker in self._world.brokers
        }
        return [f"{name}: {count} transactions" for name, count in pending.items() if count]

    def audited(self, half):
        """Record a message of the half topic; a send without a response is repeated."""
        self._halves[half.body] += PREPARED_QUEUE_OFFSET not in half.properties

    def check_repeats(self, stored):
        """Check that no half message is stored twice in its topic; ``stored`` is by queue."""
        counts = Counter(
            body
            for queue, bodies in stored.items()
            if queue[0] in TOPICS
            for body in bodies.values()
            if body in self._begun
        )
        for body, count in counts.items():
            if count > self._halves[body]:
                self._ledger.complain(
                    f"{body[:24]} was sent {self._halves[body]} times, and is stored {count} times"
                )


@act(
    lambda dice: {
        "topic": dice.choice(TOPICS),
        "end": dice.choice(["commit", "commit", "commit", "rollback"]),
        "how": dice.choice(["block", "block", "leave open", "late", "twice"]),
        "seconds": dice.choice([0, 0.01, 0.5, 4.0]),
    }
)
def transact(life, topic, end, how, seconds):
    """Begin a transaction, work for a while, decide, and end it or leave it open."""
    world, process, decisions = life.world, life.process, life.world.ledger.transactions
    producer = life.producer
    state = _COMMIT if end == "commit" else _ROLLBACK
    body = f"t{len(world.ledger.sent)} of {life.host.name}".encode()
    decisions.begins(body, topic, process)
    begun = producer.transaction(Message(topic, body))
    try:
        with world.watch.within(process, "the begin of a transaction", _SEND_SECONDS):
            begun.begin()
    except ClientError as error:
        world.note(f"{process.name} could not begin a transaction: {error}")
        decisions.decides(body, _ROLLBACK)
        return
    time.sleep(seconds)
    decisions.decides(body, state)
    if how == "leave open":
        begun.leave_open()
        return
    if how == "late":
        time.sleep(2.0)  # so that the check comes first
    with world.watch.within(process, "the end of a transaction", _SEND_SECONDS):
        begun.end(state)


def start_transaction_producer(life):
    """Return a started producer of the group that answers checks of all its transactions."""
    while True:
        instance = life.instance or life.new_instance()
        producer = TransactionProducer(
            GROUP,
            instance=instance,
            check_listener=life.world.ledger.transactions.check,
            topics=TOPICS,
        )
        try:
            producer.start()
        except ClientError as error:
            life.world.note(f"{life.process.name} cannot start its producer: {error}")
            producer.close()
            time.sleep(_START_AGAIN_SECONDS)
        else:
            return producer
