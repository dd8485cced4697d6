"""Lying brokers of simulated worlds send lies only to the programs of a story."""

import random
from itertools import product, repeat

import numpy as np
import pytest
from support.suite.selection import spread
from world.clients.lied_to import draw as client_story
from world.cluster.answers import Answers
from world.cluster.lies import HONEST_HOST, WORLD_LIES, Liar
from world.kernel import Kernel
from world.network import End, Network, Weather
from world.spark.drawing import _LIES as SPARK_LIES
from world.spark.lied_to import draw as spark_story

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import BrokerData, QueueData, TopicRouteData
from rmq_spark.wire.chunk.record_locations import encode_locations
from rmq_spark.wire.chunk.sized_chunk import encode_sizes
from rmq_spark.wire.codes import RequestCode, SerializeType
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader

HOST = "127.0.1.1"
RECORDS = [
    encode_record(StoredMessage(topic="T", body=b"body %d" % n, queue_offset=n)) for n in range(5)
]
SIZES = [len(each) for each in RECORDS]
ROUTE = TopicRouteData(
    queue_datas=(QueueData(broker_name="a", read_queue_nums=2, write_queue_nums=2, perm=6),),
    broker_datas=(BrokerData(cluster="C", broker_name="a", broker_addrs={0: "127.0.1.1:1"}),),
)
BODIES = {
    RequestCode.PULL_MESSAGE: b"".join(RECORDS),
    RequestCode.LITE_PULL_MESSAGE: b"".join(RECORDS),
    RequestCode.PULL_CHUNK: encode_sizes(SIZES) + b"".join(RECORDS),
    RequestCode.PULL_PLACES: encode_locations(np.arange(5) * 1_000, np.array(SIZES)),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: encode_body(ROUTE),
}
FIELDS = {"nextBeginOffset": "5", "minOffset": "0", "maxOffset": "9"}


def asked(about):
    """Return a request for each code with each kind of header, and the right response."""
    for code, serialize_type in product(RequestCode, SerializeType):
        request = RemotingCommand(code, opaque=7, serialize_type=serialize_type)
        yield request, request.respond(0, None, FIELDS, BODIES.get(code, b"body"))


@pytest.mark.parametrize("about", spread(6, sorted(WORLD_LIES)))
def test_liar_changes_answers_of_its_kind_and_none_when_its_time_is_over(about):
    kernel = Kernel(random.Random(1))
    liar = Liar(kernel, random.Random(2), lambda _: None)
    liar.lie(HOST, about, 5.0)
    for _ in repeat(None, 20):
        for request, answer in asked(about):
            liar.changed(HOST, request, answer).encode()
            assert liar.changed("127.0.1.2", request, answer) is answer
    count = liar.count
    assert count
    kernel.run(5.0)
    assert all(liar.changed(HOST, *each) is each[1] for each in asked(about))
    assert liar.count == count


class Peer(End):
    def __init__(self):
        super().__init__()
        self._frame_reader = FrameReader()
        self.commands = []

    def received(self, data):
        self._frame_reader.feed(data)
        while (frame := self._frame_reader.next_frame()) is not None:
            self.commands.append(decode_command(frame))


@pytest.mark.parametrize("host", ["127.0.2.1", HONEST_HOST])
def test_answers_are_wrong_for_programs_and_right_for_auditors(host):
    kernel = Kernel(random.Random(1))
    network = Network(kernel, random.Random(2), Weather(cut_odds=0.9))
    liar = Liar(kernel, random.Random(3), lambda _: None)
    network.lines = Answers(kernel, random.Random(4), liar).lines
    client, broker = Peer(), Peer()
    network.listen((HOST, 1), lambda join: join(broker))
    network.connect(client, (HOST, 1), host)
    kernel.run(1)
    liar.lie(HOST, "refusals of sends", 5.0)
    for opaque in range(50):
        client.send(RemotingCommand(RequestCode.SEND_MESSAGE, opaque=opaque).encode())
    kernel.run(1)
    assert len(broker.commands) == 50
    for request in broker.commands:
        broker.send(request.respond(0).encode())
    kernel.run(1)
    assert [each.opaque for each in client.commands] == list(range(50))
    is_lied_to = any(each.code for each in client.commands)
    assert is_lied_to is (host != HONEST_HOST)


@pytest.mark.parametrize(("draw", "kinds"), [(client_story, WORLD_LIES), (spark_story, SPARK_LIES)])
def test_stories_with_lies_draw_every_kind_of_lie(draw, kinds):
    lies = [each for seed in range(300) for each in draw(seed).troubles if each.kind == "lie"]
    assert {each.arguments["about"] for each in lies} == set(kinds)
