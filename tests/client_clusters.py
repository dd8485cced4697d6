"""A cluster of fakes: one name server and several brokers,
each of which answers sends as a story has it."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from fake_servers import FakeServer, answering

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.routes import BrokerData, QueueData, TopicRouteData
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.table import HEADERS

SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


class FakeBroker:
    """Takes sends; `story` gets each and says the code with which it is answered, None:
    not at all."""

    def __init__(self, name, story):
        self.name = name
        self.sent = []
        self._story = story
        self._lock = threading.Lock()

    def answer(self, request):
        if request.code == RequestCode.EXTENSIONS:
            return request.respond(3, "not supported")
        if request.code not in SENDS:
            return request.respond(0)
        header = HEADERS[request.code].request.decode(request.ext_fields)
        with self._lock:
            self.sent.append((header, bytes(request.body)))
            number = len(self.sent)
        code = self._story(number)
        if code is None or request.is_one_way:
            return None
        fields = {
            "msgId": f"{self.name}{number}",
            "queueId": str(header.queue_id),
            "queueOffset": str(number),
        }
        return request.respond(code, f"answer {code}", fields)


class FakeCluster:
    """Brokers by name, with two queues of topic T each; `stories` as for `FakeBroker`."""

    def __init__(self, **stories):
        self.brokers = {name: FakeBroker(name, story) for name, story in stories.items()}
        self._stack = ExitStack()
        self.servers = {}

    def __enter__(self):
        for name, broker in self.brokers.items():
            self.servers[name] = self._stack.enter_context(FakeServer(answering(broker.answer)))
        self.name_server = self._stack.enter_context(FakeServer(answering(self._route)))
        self.address = self.name_server.address
        return self

    def __exit__(self, *error):
        self._stack.__exit__(*error)

    def _route(self, request):
        topic = request.ext_fields.get("topic")
        if topic not in ("T", "TBW102"):
            return request.respond(17, "no such topic")
        queues = tuple(
            QueueData(broker_name=name, read_queue_nums=2, write_queue_nums=2, perm=6)
            for name in self.brokers
        )
        brokers = tuple(
            BrokerData(broker_name=name, broker_addrs={0: server.address})
            for name, server in self.servers.items()
        )
        return request.respond(
            0, body=encode_body(TopicRouteData(queue_datas=queues, broker_datas=brokers))
        )

    def sends(self):
        return {name: len(broker.sent) for name, broker in self.brokers.items()}
