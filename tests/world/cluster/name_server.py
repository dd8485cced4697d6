"""A small name server for a simulated world: it knows the brokers without registration.

Like RocketMQ's, it keeps returning the last known data of a broker that is down. It sometimes
answers twice, as the story says, and not at all while its host is silent.
"""

from functools import partial

from world.network import End

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import BrokerData, QueueData, TopicRouteData
from rmq_spark.wire.bodies.operators import ClusterInfo, TopicList
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.remoting.command import decode_command
from rmq_spark.wire.remoting.framing import FrameReader

HOST = "127.0.3.1"
PORT = 9876
ADDRESS = f"{HOST}:{PORT}"
_CLUSTER = "world"


class NameServer:
    """Answers all connections."""

    def __init__(self, world, brokers, twice):
        """``twice`` is the share of responses that are sent twice."""
        self._brokers = brokers
        self._duplicate_names = twice
        self._dice = world.dice_for("name server")
        self._kernel = world.kernel
        self._known = {}
        self._unheard_until = {}
        self._told = {}
        self._registered = {broker.name for broker in brokers}
        world.network.listen((HOST, PORT), self._accept)

    def _accept(self, connect):
        connect(_Visitor(self._answer))

    def _answer(self, visitor, request):
        self._look()
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            answer = self._route(request)
        elif request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            answer = self._cluster(request)
        elif request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            topics = TopicList(topic_list=frozenset(topic for topic, _ in self._known))
            answer = request.respond(ResponseCode.SUCCESS, body=encode_body(topics))
        elif request.code == RequestCode.DELETE_TOPIC_IN_NAMESRV:
            topic = request.ext_fields["topic"]
            self._known = {key: data for key, data in self._known.items() if key[0] != topic}
            answer = request.respond(ResponseCode.SUCCESS)
        else:
            answer = request.respond(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "only routes are known here"
            )
        for _ in range(2 if self._dice.random() < self._duplicate_names else 1):
            visitor.send(answer.encode())

    def forget(self, broker, seconds):
        """Forget a broker, and ignore it for a while."""
        self._known = {key: data for key, data in self._known.items() if key[1] != broker.name}
        self._registered.discard(broker.name)
        self._unheard_until[broker.name] = self._kernel.now + seconds

    def tells_others(self, addresses):
        """Set other addresses for brokers and slaves."""
        self._told = addresses

    def _hears(self, broker):
        return self._unheard_until.get(broker.name, 0.0) <= self._kernel.now

    def _look(self):
        """Update the data of reachable brokers; keep the last known data of others."""
        for broker in self._brokers:
            if not broker.is_serving or not self._hears(broker):
                continue
            self._registered.add(broker.name)
            self._known = {key: data for key, data in self._known.items() if key[1] != broker.name}
            for config in broker.topics():
                self._known[config.topic_name, broker.name] = QueueData(
                    broker_name=broker.name,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    perm=config.perm,
                )

    def _route(self, request):
        topic = request.ext_fields["topic"]
        known = [broker for broker in self._brokers if (topic, broker.name) in self._known]
        if not known:
            return request.respond(ResponseCode.TOPIC_NOT_EXIST, f"no route of topic {topic}")
        route = TopicRouteData(
            queue_datas=tuple(self._known[topic, broker.name] for broker in known),
            broker_datas=tuple(map(self._data_of, known)),
        )
        return request.respond(ResponseCode.SUCCESS, body=encode_body(route))

    def _cluster(self, request):
        known = [broker for broker in self._brokers if broker.name in self._registered]
        info = ClusterInfo(
            broker_addr_table={broker.name: self._data_of(broker) for broker in known},
            cluster_addr_table={_CLUSTER: frozenset(broker.name for broker in known)},
        )
        return request.respond(ResponseCode.SUCCESS, body=encode_body(info))

    def _data_of(self, broker):
        """Return a broker's data, with a slave's address while it answers for a dead master."""
        number, address = 0, broker.address
        if broker.slave_address is not None:
            number, address = 1, broker.slave_address
        addresses = {number: self._told.get(address, address)}
        return BrokerData(cluster=_CLUSTER, broker_name=broker.name, broker_addrs=addresses)


class _Visitor(End):
    """One connection to it."""

    def __init__(self, answer):
        super().__init__()
        self._frame_reader = FrameReader()
        self._answer = partial(answer, self)

    def received(self, data):
        self._frame_reader.feed(data)
        while (frame := self._frame_reader.next_frame()) is not None:
            self._answer(decode_command(frame))

    def ended(self):
        self.finish()
        self.is_over = True
