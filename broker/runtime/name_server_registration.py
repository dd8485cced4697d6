"""NameServerRegistration: keeps the broker registered at the name servers of a RocketMQ cluster.

    start, each period, and when topics are saved
         ──> at each name server, in a thread: connect; who has this broker's name?; REGISTER_BROKER
    stop ──> UNREGISTER_BROKER

Only saved topics are registered, with the version under which they are saved: name servers take
topics of a known version for unchanged. If a master at another address has the broker's name, the
broker is not registered, because clients would lose that master. Each name server is retried
independently of the others.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.configs import RegisterBrokerBody, TopicConfigSerializeWrapper
from rmq_spark.wire.bodies.operators import ClusterInfo
from rmq_spark.wire.codes import MASTER_ID, RequestCode, ResponseCode, TopicPermission
from rmq_spark.wire.headers.operators import (
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from rmq_spark.wire.remoting.command import RemotingCommand

from ..store.errors import Degradation
from .name_server_connection import NameServerConnection, NameServerError, build_request

RETRY_SECONDS: Final = 5.0
CHANGE_SECONDS: Final = 0.2
"""The minimum time between two registrations while topics change quickly."""
_UNREGISTER_SECONDS: Final = 2.0
_READ_WRITE: Final = int(TopicPermission.READ | TopicPermission.WRITE)
_log = logging.getLogger(__name__)

JobRunner = Callable[[Callable[[], object], Callable[["BaseException | None"], None]], None]
"""Runs a job in a thread, then a callback on the loop with its error or None."""


class Loop(Protocol):
    """The parts of an event loop that registrations need."""

    def time(self) -> float:
        """Return the monotonic time, in seconds."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> asyncio.TimerHandle:
        """Call a function after some seconds."""


@dataclass(frozen=True)
class RegisteredBroker:
    """The broker as name servers list it.

    Attributes:
        address: The address that clients get, as ``host:port``.
        ha_address: The address for slaves, which name servers demand; nothing listens there.
        permission: The bits of the broker's own permission, which limits that of each topic.
        is_compressed: Whether the list of topics is compressed.
    """

    cluster: str
    name: str
    address: str
    ha_address: str
    permission: int
    is_compressed: bool

    def registration(self, topics: TopicConfigSerializeWrapper) -> RemotingCommand:
        """Return REGISTER_BROKER with these topics."""
        table = {
            name: replace(config, perm=config.perm & (self.permission | ~_READ_WRITE))
            for name, config in topics.topic_config_table.items()
        }
        wrapper = replace(topics, topic_config_table=table)
        request_body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)
        body = request_body.encode(is_compressed=self.is_compressed)
        header = RegisterBrokerRequestHeader(
            broker_name=self.name,
            broker_addr=self.address,
            cluster_name=self.cluster,
            ha_server_addr=self.ha_address,
            broker_id=MASTER_ID,
            compressed=self.is_compressed,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        return build_request(RequestCode.REGISTER_BROKER, header, body)

    def unregistration(self) -> RemotingCommand:
        """Return UNREGISTER_BROKER for this broker."""
        header = UnRegisterBrokerRequestHeader(
            broker_name=self.name,
            broker_addr=self.address,
            cluster_name=self.cluster,
            broker_id=MASTER_ID,
        )
        return build_request(RequestCode.UNREGISTER_BROKER, header)


class _Registration:
    def __init__(self, connection: NameServerConnection) -> None:
        address = connection.address
        self.connection = connection
        self.degradation = Degradation(f"this broker is not registered at name server {address}")
        self.timer: asyncio.TimerHandle | None = None
        self.started_at = float("-inf")
        self.is_running = False
        self.is_outdated = False
        self.is_registered = False


class NameServerRegistration:
    """The registrations of one broker; all methods are for the loop's thread."""

    def __init__(
        self,
        broker: RegisteredBroker,
        connections: Sequence[NameServerConnection],
        topics: Callable[[], TopicConfigSerializeWrapper],
        period_seconds: float,
        loop: Loop,
        run_in_thread: JobRunner,
    ) -> None:
        """Store the parts; ``topics`` returns the saved topics, and may be called in any thread."""
        self._broker = broker
        self._registrations = [_Registration(each) for each in connections]
        self._topics = topics
        self._period_seconds = period_seconds
        self._loop = loop
        self._run_in_thread = run_in_thread
        self._is_stopping = False

    def start(self) -> None:
        """Register, and keep registered."""
        for each in self._registrations:
            self._begin(each)

    def topics_saved(self) -> None:
        """Register soon, because the saved topics have changed."""
        for each in self._registrations:
            if each.is_running:
                each.is_outdated = True
            elif each.degradation.text is None:  # otherwise the next retry registers them
                self._schedule(each, each.started_at + CHANGE_SECONDS - self._loop.time())

    def states(self) -> Iterator[tuple[str, bool]]:
        """Yield each name server's address, and whether the broker is registered there."""
        for each in self._registrations:
            yield each.connection.address, each.is_registered

    def descriptors(self) -> list[int]:
        """Return the descriptors of all sockets."""
        return [each.connection.descriptor for each in self._registrations]

    async def stop(self) -> None:
        """Unregister where the broker is registered, and close the connections.

        At another name server it would unregister another master with its name.
        """
        self._is_stopping = True
        waiting: list[asyncio.Future[None]] = []
        for each in self._registrations:
            if each.timer is not None:
                each.timer.cancel()
            if each.is_registered and each.connection.is_open:
                ended = asyncio.get_running_loop().create_future()
                waiting.append(ended)
                self._run_in_thread(
                    partial(each.connection.request, self._broker.unregistration()),
                    partial(_complete, ended),
                )
        if waiting:
            await asyncio.wait(waiting, timeout=_UNREGISTER_SECONDS)
        for each in self._registrations:
            each.is_registered = False
            each.connection.close()

    def _schedule(self, each: _Registration, seconds: float) -> None:
        if each.timer is not None:
            each.timer.cancel()
        each.timer = self._loop.call_later(max(seconds, 0.0), partial(self._begin, each))

    def _begin(self, each: _Registration) -> None:
        if self._is_stopping or each.is_running:
            return
        each.is_running, each.is_outdated = True, False
        each.started_at = self._loop.time()
        self._run_in_thread(partial(self._register, each.connection), partial(self._ended, each))

    def _ended(self, each: _Registration, error: BaseException | None) -> None:
        each.is_running = False
        if self._is_stopping:
            return
        if error is not None:
            each.is_registered = False
            each.degradation.begin(error)
            self._schedule(each, RETRY_SECONDS)
            return
        each.degradation.end()
        if not each.is_registered:
            each.is_registered = True
            broker, server = self._broker, each.connection.address
            _log.info("registered at name server %s as %s, %s", server, broker.name, broker.address)
        self._schedule(each, CHANGE_SECONDS if each.is_outdated else self._period_seconds)

    # ---- in a thread

    def _register(self, connection: NameServerConnection) -> None:
        command = self._broker.registration(self._topics())
        if connection.is_open:
            with suppress(OSError, NameServerError):  # after its restart, reconnect
                self._exchange(connection, command)
                return
            connection.close()
        connection.open()
        self._exchange(connection, command)

    def _exchange(self, connection: NameServerConnection, command: RemotingCommand) -> None:
        self._check_name(connection)
        _check(connection.request(command))

    def _check_name(self, connection: NameServerConnection) -> None:
        """Raise an error if another master has this broker's name."""
        response = connection.request(build_request(RequestCode.GET_BROKER_CLUSTER_INFO))
        _check(response)
        name = self._broker.name
        known = decode_body(ClusterInfo, response.body).broker_addr_table.get(name)
        address = None if known is None else known.broker_addrs.get(MASTER_ID)
        if address is not None and address != self._broker.address:
            connection.close()
            raise NameServerError(
                f"the master at {address} has the name {name}. Set another brokerName. If "
                "that was this broker at another address, its name is free 2 minutes after it ended"
            )


def _check(response: RemotingCommand) -> None:
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise NameServerError(
            "it registers no brokers, so it is a broker or a proxy: set namesrvAddr to the address "
            "of a name server of RocketMQ"
        )
    if response.code != ResponseCode.SUCCESS:
        raise NameServerError(
            f"it refuses with code {response.code}: {response.remark or 'no reason'}"
        )


def _complete(future: asyncio.Future[None], error: BaseException | None) -> None:
    del error  # errors do no harm: closing the connection unregisters
    if not future.done():
        future.set_result(None)
