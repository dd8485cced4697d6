"""Acts of bad clients: lost connections, partial requests, unread responses, meaningless bytes."""

from support.clients.remoting_clients import pull_request, send_request
from world.acts import act, place
from world.client import Connection


@act(lambda dice: {"seconds": dice.choice([0.001, 0.05, 1.0])})
async def wait(player, seconds):
    await player.world.tasks.sleep(seconds)


@act(lambda dice: {"silent": dice.random() < 0.3})
async def lose_connection(player, silent):
    """Break the connection while requests are pending."""
    connection = await player.connected()
    if silent:
        connection.fall_silent()
    connection.give_up()


@act(lambda dice: {"size": dice.choice([3, 200, 9_000]), "seconds": dice.choice([0.01, 40.0])})
async def half_a_request(player, size, seconds):
    """Send a part of a send request on a separate connection. The ledger does not know the message:
    the broker must not store it."""
    stranger = await _stranger(player)
    data = send_request(b"0:half", "T0", 0).encode()
    stranger.send((data + bytes(9_000))[: min(size, len(data) - 1)])
    await player.world.tasks.within(seconds, stranger.is_gone)
    stranger.leave()


@act(lambda dice: {"size": dice.choice([1, 50, 70_000])})
async def nonsense(player, size):
    """Send meaningless bytes: the broker must close the connection, and do nothing else."""
    stranger = await _stranger(player)
    stranger.send(player.dice.randbytes(size))
    await player.world.tasks.within(60, stranger.is_gone)
    stranger.leave()


@act(
    lambda dice: {**place(dice), "pulls": dice.choice([5, 50]), "seconds": dice.choice([0.1, 50.0])}
)
async def read_nothing(player, topic, queue_id, pulls, seconds):
    """Send pulls without reading the responses."""
    stranger = await _stranger(player)
    stranger.stops_reading = True
    for number in range(pulls):
        stranger.send(pull_request(0, topic, queue_id, opaque=number + 1).encode())
    await player.world.tasks.within(seconds, stranger.is_gone)
    stranger.give_up()


async def _stranger(player):
    connection = Connection(player.world, f"a stranger of {player.name}", is_watched=False)
    player.world.network.connect(connection, player.world.address)
    if not await player.world.tasks.within(2.0, connection.is_open, otherwise=False):
        connection.give_up()
    return connection
