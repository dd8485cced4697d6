"""The asyncio admin has the threaded admin's methods and sends requests concurrently."""

import asyncio
import inspect

from support.clients.asyncio_tests import told_in_a_loop

from rmq_spark.client.admin.admin import Admin as ThreadedAdmin
from rocketpoll import aio


@told_in_a_loop
async def test_aio_admin_sends_requests_concurrently(broker):
    async with aio.Admin(broker.address) as admin:
        answers = await asyncio.gather(*[admin.masters() for _ in range(50)])
    assert answers == [{"broker-a": broker.address}] * 50


def test_aio_admin_has_every_method_of_the_threaded_admin():
    def methods(of):
        return {
            name
            for name, each in inspect.getmembers(of, inspect.isfunction)
            if not name.startswith("_")
        }

    assert methods(ThreadedAdmin) <= methods(aio.Admin)
