"""Orders with an outbox in Django: a message is sent if, and only if, its order is in the database.

    python django_outbox.py orders.db localhost:9876 1 2 3

places the orders 1 to 3 and sends what is in the outbox. Stop it at any moment and run it again:
each order that is in the database has been sent at least once, and no other. In a project, settings
and migrations are Django's own, and `send_outbox` is a management command that runs all the time.
"""

import json
import sys

import django
from django.conf import settings

from rocketpoll import Message, Producer

if len(sys.argv) < 3:
    raise SystemExit(__doc__)
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()

from django.db import connection, models, transaction  # noqa: E402  # they need the settings


class Order(models.Model):
    """An order of a customer."""

    id = models.BigIntegerField(primary_key=True)
    total = models.FloatField()

    class Meta:  # noqa: D106  # as in any model
        app_label = "shop"


class OutboxMessage(models.Model):
    """A message that has to be sent. Rows are sent in the order of their ids."""

    topic = models.CharField(max_length=127)
    key = models.CharField(max_length=255)
    body = models.BinaryField()

    class Meta:  # noqa: D106  # as in any model
        app_label = "shop"


def create_tables() -> None:
    """Create the tables that are missing; in a project, ``manage.py migrate`` does."""
    present = connection.introspection.table_names()
    for model in (Order, OutboxMessage):
        if model._meta.db_table not in present:
            with connection.schema_editor() as editor:
                editor.create_model(model)


def place_order(number: int) -> None:
    """Store an order and its message, both or neither; an order that exists is left alone."""
    with transaction.atomic():
        order, is_new = Order.objects.get_or_create(id=number, defaults={"total": 9.5})
        if is_new:
            body = json.dumps({"id": order.id, "total": order.total}).encode()
            OutboxMessage.objects.create(topic="orders", key=f"order-{number}", body=body)


def send_outbox(producer: Producer) -> None:
    """Send all messages of the outbox; each is deleted when a broker has stored it."""
    for row in OutboxMessage.objects.order_by("id"):
        producer.send(Message(row.topic, bytes(row.body), keys=row.key))
        row.delete()


def main() -> None:
    """Place the orders of the command line, and send the outbox."""
    _, address, *numbers = sys.argv[1:]
    create_tables()
    for number in numbers:
        place_order(int(number))
    with Producer("orders", address) as producer:
        send_outbox(producer)


if __name__ == "__main__":
    main()
