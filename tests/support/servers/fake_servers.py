"""Fake servers that answer as a test defines, partially, or never; and a cluster of them."""

import socket
import threading
from contextlib import ExitStack, suppress

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import BrokerData, QueueData, TopicRouteData
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import decode_command
from rmq_spark.wire.remoting.framing import FrameReader


class Peer:
    """A client connection, seen from the server."""

    def __init__(self, sock):
        self.socket = sock
        self._frame_reader = FrameReader()

    def receive(self):
        """Return the next request; None at the end of the stream."""
        while (frame := self._frame_reader.next_frame()) is None:
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self._frame_reader.feed(data)
        return decode_command(frame)

    def send(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else data.encode())

    def close(self):
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class FakeServer:
    """Listens on a free port; `story` serves each client in a thread, and returns to close the
    connection.

    With ``tls``, a server's SSL context, clients have to use TLS.
    """

    def __init__(self, story, tls=None):
        self._story = story
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.peers = []
        self._threads = []
        self.fault = None

    def __enter__(self):
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()
        return self

    def __exit__(self, *_):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for peer in self.peers:
            peer.close()
        for thread in self._threads:
            thread.join(10)
        if self.fault is not None:
            raise self.fault

    def _accept(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            peer = Peer(sock)
            self.peers.append(peer)
            thread = threading.Thread(target=self._tell, args=(peer,))
            self._threads.append(thread)
            thread.start()

    def _tell(self, peer):
        try:
            if self._tls is not None:
                peer.socket = self._tls.wrap_socket(peer.socket, server_side=True)
            self._story(peer)
        except OSError:
            pass
        except BaseException as error:
            self.fault = error
        finally:
            peer.close()


def answering(answer_to):
    """Return a story that answers each request with a function's result; None means no response.

    Unless the function handles it, negotiation fails as with RocketMQ's brokers: the server knows
    no extensions.
    """

    def story(peer):
        while (request := peer.receive()) is not None:
            answer = answer_to(request)
            if answer is None and request.code == RequestCode.EXTENSIONS:
                answer = request.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")
            if answer is not None:
                peer.send(answer)

    return story


def silent(peer):
    """Read everything and never answer."""
    while peer.receive() is not None:
        pass


class BlackHole:
    """The address of an unreachable host: connection attempts get no answer at all.

    The backlog is full, and no connection is accepted.
    """

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._waiting = []

    def __enter__(self):
        with suppress(TimeoutError):
            while True:
                self._waiting.append(socket.create_connection(("127.0.0.1", self.port), 0.2))
        return self

    def __exit__(self, *_):
        for each in (*self._waiting, self._listener):
            each.close()


SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


class FakeBroker:
    """A broker for sends; `story` returns each response code, or None for no response."""

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
    """Fake brokers by name, each with two queues of topic T; `stories` as for `FakeBroker`."""

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
