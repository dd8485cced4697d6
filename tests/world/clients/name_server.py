"""A small name server for a simulated world: it knows the brokers, as if they had registered.

Like RocketMQ's it goes on saying of a broker that is down what that has said last. It says it twice now and
then, as the story has it, and nothing at all while its host is silent.
"""

from __future__ import annotations

from functools import partial

from world.network import End

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.routes import BrokerData, QueueData, TopicRouteData
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import decode_command
from rmq_spark.wire.framing import FrameReader

HOST = "127.0.3.1"
PORT = 9876
ADDRESS = f"{HOST}:{PORT}"


class NameServer:
    """Answers whoever connects."""

    def __init__(self, world, brokers, twice):
        """``twice`` is how often an answer is given twice."""
        self._brokers = brokers
        self._twice = twice
        self._dice = world.dice_for("name server")
        self._known = {}
        world.network.listen((HOST, PORT), self._accept)

    def _accept(self, connect):
        connect(_Visitor(self._answer))

    def _answer(self, visitor, request):
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            answer = self._route(request)
        else:
            answer = request.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "only routes are known here")
        for _ in range(2 if self._dice.random() < self._twice else 1):
            visitor.send(answer.encode())

    def _route(self, request):
        topic = request.ext_fields["topic"]
        for broker in self._brokers:
            config = broker.topic(topic)
            if config is not None:
                self._known[topic, broker.name] = QueueData(
                    broker_name=broker.name,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    perm=config.perm,
                )
        known = [broker for broker in self._brokers if (topic, broker.name) in self._known]
        if not known:
            return request.respond(ResponseCode.TOPIC_NOT_EXIST, f"no route of topic {topic}")
        route = TopicRouteData(
            queue_datas=tuple(self._known[topic, broker.name] for broker in known),
            broker_datas=tuple(
                BrokerData(cluster="world", broker_name=broker.name, broker_addrs={0: broker.address})
                for broker in known
            ),
        )
        return request.respond(ResponseCode.SUCCESS, body=encode_body(route))


class _Visitor(End):
    """One connection to it."""

    def __init__(self, answer):
        super().__init__()
        self._frames = FrameReader()
        self._answer = partial(answer, self)

    def received(self, data):
        self._frames.feed(data)
        while (frame := self._frames.next_frame()) is not None:
            self._answer(decode_command(frame))

    def ended(self):
        self.finish()
        self.is_over = True
