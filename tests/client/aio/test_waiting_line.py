"""Tasks that wait for room in a queue get it in order; none is skipped."""

import asyncio

from support.clients.asyncio_tests import steps, told_in_a_loop

from rmq_spark.client.aio.producer import RoomWaiter, WaiterQueue


class Room:
    """Room for a number of items, and the tasks that have taken some."""

    def __init__(self, size):
        self.left, self.came = size, []
        self.line = WaiterQueue(asyncio.get_running_loop())

    async def enter(self, name, size, seconds=60):
        place = RoomWaiter(self.line)
        try:
            while not (place.is_first and size <= self.left):
                before = asyncio.get_running_loop().time()
                await place.wait(seconds)
                if asyncio.get_running_loop().time() - before >= seconds:
                    return
        finally:
            place.leave()
        self.left -= size
        self.came.append(name)

    def leave(self, size):
        self.left += size
        self.line.wake_first()

    def begin(self, name, size):
        return asyncio.create_task(self.enter(name, size))


@told_in_a_loop
async def test_large_waiter_is_not_overtaken_by_small_ones():
    room = Room(10)
    await room.enter("first", 10)
    for name, size in (("small", 1), ("large", 8), ("later", 1), ("last", 2)):
        room.begin(name, size)
    await steps(3)
    for _ in range(8):  # room for all small items together, but not for the large one
        room.leave(1)
        await steps(3)
    room.begin("much later", 1)
    await steps(3)
    assert room.came == ["first", "small"]
    room.leave(1)
    await steps(3)
    assert room.came == ["first", "small", "large"]
    room.leave(2)
    await steps(5)
    assert room.came[3:] == ["later"]
    assert len(room.line.waiters) == 2


@told_in_a_loop
async def test_cancelled_waiter_wakes_the_next_in_line():
    room = Room(2)
    await room.enter("first", 2)
    large, small = room.begin("large", 2), room.begin("small", 1)
    await steps(2)
    room.leave(1)
    large.cancel()  # woken, but cancelled before it runs
    await small
    assert room.came == ["first", "small"]
    await room.enter("in vain", 1, seconds=0.001)
    assert len(room.line.waiters) == 0
    room.line.wake_first()  # without waiters


@told_in_a_loop
async def test_closed_waiter_queue_wakes_all():
    line, woken = WaiterQueue(asyncio.get_running_loop()), []

    async def wait(name):
        await RoomWaiter(line).wait(60)
        woken.append(name)

    tasks = [asyncio.create_task(wait(name)) for name in "abc"]
    await steps(1)
    assert len(line.waiters) == 3
    line.wake_all()
    await asyncio.gather(*tasks)
    assert woken == ["a", "b", "c"]
