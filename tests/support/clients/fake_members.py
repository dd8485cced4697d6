"""Members of groups: a consumer and a producer that record their calls, and access to a consumer's
implementation."""

import threading

from rmq_spark.wire.bodies.clients import ConsumerData, SubscriptionData
from rmq_spark.wire.bodies.operators import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
)
from rmq_spark.wire.message_queue import MessageQueue


class Consumer:
    """A consumer of topic T."""

    def __init__(self, group="G"):
        self.group = group
        self.told = []
        self.rebalances = threading.Semaphore(0)
        self.resets = threading.Semaphore(0)
        self.consumes = lambda _: ConsumeResult.CR_SUCCESS

    def consumer_data(self):
        return ConsumerData(
            group_name=self.group,
            subscription_data_set=(SubscriptionData(topic="T", sub_version=1),),
        )

    def stop_threads(self):
        """Do nothing: this consumer has no threads."""

    def on_connection_closed(self, address):
        pass

    def request_rebalance(self):
        self.rebalances.release()

    def reset_offsets(self, topic, offsets):
        self.told.append((topic, dict(offsets)))
        self.resets.release()

    def consume_status(self, topic):
        return {MessageQueue(topic, "broker-a", 0): 7}

    def running_info(self):
        return ConsumerRunningInfo(properties={"PROP_CONSUMEORDERLY": "false"})

    def consume_directly(self, message, broker_name):
        self.told.append((message.body, broker_name))
        return ConsumeMessageDirectlyResult(consume_result=self.consumes(message))


class Producer:
    """A producer that answers transaction checks."""

    def __init__(self):
        self.checks = []
        self.checked = threading.Event()

    def check_transaction_state(self, address, message, header):
        self.checks.append((address, message.body, header.tran_state_table_offset))
        self.checked.set()


def implementation_of(consumer):
    """Return the implementation of a public consumer, for states that public methods cannot
    produce."""
    return consumer._impl
