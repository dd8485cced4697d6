import pytest

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.producer.producer import Producer


@pytest.fixture
def admin(running_broker):
    """Return an `Admin` of a broker with a topic of two queues."""
    with Admin(running_broker.address) as made:
        made.create_topic("T", 2)
        yield made


@pytest.fixture
def producer(admin):
    with Producer("P", instance=admin.instance) as made:
        yield made
