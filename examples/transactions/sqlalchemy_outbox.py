"""Orders with an outbox: a message is sent if, and only if, its order is in the database.

    python sqlalchemy_outbox.py orders.db localhost:9876 1 2 3

places the orders 1 to 3 and sends what is in the outbox. Stop it at any moment and run it again:
each order that is in the database has been sent at least once, and no other.
"""

import json
import sys

from sqlalchemy import Engine, LargeBinary, String, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from rocketpoll import Message, Producer


class Base(DeclarativeBase):
    """The tables of this program."""


class Order(Base):
    """An order of a customer."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[float]


class OutboxMessage(Base):
    """A message that has to be sent. Rows are sent in the order of their ids."""

    __tablename__ = "outbox"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    topic: Mapped[str] = mapped_column(String(127))
    key: Mapped[str] = mapped_column(String(255))
    body: Mapped[bytes] = mapped_column(LargeBinary)


def place_order(engine: Engine, number: int) -> None:
    """Store an order and its message, both or neither; an order that exists is left alone."""
    with Session(engine) as session, session.begin():
        if session.get(Order, number) is None:
            order = Order(id=number, total=9.5)
            body = json.dumps({"id": order.id, "total": order.total}).encode()
            session.add(order)
            session.add(OutboxMessage(topic="orders", key=f"order-{number}", body=body))


def send_outbox(engine: Engine, producer: Producer) -> None:
    """Send all messages of the outbox; each is deleted when a broker has stored it."""
    with Session(engine) as session:
        for row in session.scalars(select(OutboxMessage).order_by(OutboxMessage.id)).all():
            producer.send(Message(row.topic, row.body, keys=row.key))
            session.delete(row)
            session.commit()


def main() -> None:
    """Place the orders of the command line, and send the outbox."""
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    database, address, *numbers = sys.argv[1:]
    engine = create_engine(f"sqlite:///{database}")
    Base.metadata.create_all(engine)
    for number in numbers:
        place_order(engine, int(number))
    with Producer("orders", address) as producer:
        send_outbox(engine, producer)


if __name__ == "__main__":
    main()
