"""Direct consumption: the listener is called with one message that an operator has sent.

Whatever becomes of it, no offset moves, and nothing is sent back. It must not know queues that are
assigned, nor who asks.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rmq_spark.client.consumer.clock import monotonic_ms
from rmq_spark.client.consumer.dispatch.consume_concurrently import (
    ConsumeMessageConcurrentlyService,
)
from rmq_spark.client.consumer.dispatch.consume_orderly import ConsumeMessageOrderlyService
from rmq_spark.client.consumer.dispatch.listeners import ConsumeOrderlyStatus
from rmq_spark.client.consumer.pull.pull_message_service import PullRequest
from rmq_spark.client.consumer.queues.process_queue import ProcessQueue
from rmq_spark.client.message import MessageExt

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.client_info import ConsumeMessageDirectlyResult


def call_listener_directly(
    service: ConsumeMessageConcurrentlyService | ConsumeMessageOrderlyService,
    message: MessageExt,
    broker_name: str,
) -> ConsumeMessageDirectlyResult:
    """Call a service's listener with a message, and return what came of it, and in what time."""
    from rmq_spark.wire.bodies.client_info import ConsumeMessageDirectlyResult, ConsumeResult  # noqa: PLC0415  # rarely needed

    began = time.monotonic()
    queue = replace(message.queue, broker_name=broker_name or message.queue.broker_name)
    request = PullRequest(queue, ProcessQueue(monotonic_ms), 0)
    if isinstance(service, ConsumeMessageOrderlyService):
        status, _ = service.call_listener(request, (message,))
        succeeded = status is ConsumeOrderlyStatus.SUCCESS
    else:
        succeeded = service.call_listener(request, (message,))[0] > 0
    return ConsumeMessageDirectlyResult(
        order=service.is_orderly,
        consume_result=ConsumeResult.CR_SUCCESS if succeeded else ConsumeResult.CR_LATER,
        spent_time_mills=int((time.monotonic() - began) * 1000),
    )
