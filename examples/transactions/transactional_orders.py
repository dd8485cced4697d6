"""Orders with a transactional producer: no outbox, and no process that empties it.

    python transactional_orders.py orders.db localhost:9876 1 2 3

places the orders 1 to 3. Stop it at any moment and run it again: the broker asks `check` what has
become of the order of each message that was left open, and delivers or drops the message.
"""

import json
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing

from rocketpoll import Message, MessageExt, TransactionProducer, TransactionState

TRANSACTION_SECONDS_MAX = 5.0
"""Longest duration of a database transaction. An order not stored by then never will be."""


def connect(database: str) -> sqlite3.Connection:
    """Open the database, with its table."""
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, message TEXT)")
    return connection


def place_order(database: str, producer: TransactionProducer, number: int) -> None:
    """Store an order, and send its message with it; an order that exists is left alone.

    The order is stored with the id of its message: a second try sends a message with another id.
    """
    body = json.dumps({"id": number, "total": 9.5}).encode()
    with closing(connect(database)) as connection:
        if connection.execute("SELECT 1 FROM orders WHERE id = ?", (number,)).fetchone():
            return
        message = Message("orders", body, keys=f"order-{number}")
        with producer.transaction(message) as begun, connection:
            row = number, begun.message_id
            connection.execute("INSERT INTO orders VALUES (?, ?)", row)


def check(database: str) -> Callable[[MessageExt], TransactionState]:
    """Return a check listener: it looks up in the database whether a message's order is stored."""

    def find(message: MessageExt) -> TransactionState:
        with closing(connect(database)) as connection:
            query = "SELECT 1 FROM orders WHERE message = ?"
            if connection.execute(query, (message.message_id,)).fetchone():
                return TransactionState.COMMIT
        age_seconds = time.time() - message.born_timestamp / 1_000
        is_over = age_seconds > TRANSACTION_SECONDS_MAX
        return TransactionState.ROLLBACK if is_over else TransactionState.UNKNOWN

    return find


def main() -> None:
    """Place the orders of the command line, and answer the broker for ten seconds."""
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    database, address, *numbers = sys.argv[1:]
    with TransactionProducer(
        "orders", address, check_listener=check(database), topics=["orders"]
    ) as producer:
        for number in numbers:
            place_order(database, producer, int(number))
        time.sleep(10)  # a service keeps running: the broker may ask about messages of earlier runs


if __name__ == "__main__":
    main()
