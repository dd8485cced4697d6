"""A name server that merges the routes of several brokers, each of which is its own name server.

As with RocketMQ's, the data of a broker that is down stays valid until the test removes it.
"""

import threading

from support.servers.fake_servers import FakeServer, answering

from rmq_spark.client.errors import CONNECTION_FAULTS
from rmq_spark.client.transport.remoting_client import RemotingClient, build_request
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.clients import TopicRouteData
from rmq_spark.wire.bodies.operators import ClusterInfo, TopicList
from rmq_spark.wire.codes import RequestCode, ResponseCode

_BODIES = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRouteData,
    RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList,
}


class JoiningNameServer:
    """Knows the given brokers and those of `learn`, until `forget`."""

    def __init__(self, *brokers):
        self.brokers = [*brokers]
        self._addresses = {
            id(broker): broker.address for broker in brokers
        }  # brokers keep their ports across restarts
        self.silent = []  # brokers that are not asked, to save timeouts
        self._said = {}
        self._connections = RemotingClient()
        self._lock = threading.Lock()

    def __enter__(self):
        __tracebackhide__ = True
        self._server = FakeServer(answering(self._answer)).__enter__()
        self.address = self._server.address
        question = build_request(RequestCode.GET_BROKER_CLUSTER_INFO)
        for broker in self.brokers:
            assert self._said_by(broker, question, ClusterInfo)
        return self

    def __exit__(self, *error):
        self._server.__exit__(*error)  # first, because an open request uses a connection
        self._connections.shutdown()

    def learn(self, broker):
        """Add a broker."""
        self.brokers.append(broker)
        self._addresses[id(broker)] = broker.address

    def forget(self, broker):
        self.brokers.remove(broker)

    def _answer(self, request):
        body = _BODIES.get(request.code)
        if body is None:
            return None
        with self._lock:
            found = [
                said for broker in self.brokers if (said := self._said_by(broker, request, body))
            ]
        if not found:
            return request.respond(
                ResponseCode.TOPIC_NOT_EXIST, "No topic route info in name server"
            )
        joined = {
            field: _joined([getattr(each, field) for each in found])
            for field in body.__annotations__
        }
        return request.respond(ResponseCode.SUCCESS, body=encode_body(body(**joined)))

    def _said_by(self, broker, request, body):
        """Return a broker's data; its last known data if it is down."""
        key = (id(broker), request.code, tuple(sorted(request.ext_fields.items())))
        if broker in self.silent:
            return self._said.get(key)
        try:
            answer = self._connections.request(
                self._addresses[id(broker)], request._replace(opaque=0), 1_000
            )
            self._said[key] = (
                decode_body(body, answer.body) if answer.code == ResponseCode.SUCCESS else None
            )
        except CONNECTION_FAULTS:
            pass
        return self._said.get(key)


def _joined(values):
    first = values[0]
    if isinstance(first, tuple):
        each_once = []
        for each in (each for value in values for each in value):
            if each not in each_once:
                each_once.append(each)
        return tuple(each_once)
    if isinstance(first, frozenset):
        return frozenset().union(*values)
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _joined([value[key] for value in values if key in value]) for key in keys}
    return first
