"""Fast path selection: the path that has learned a header with the same beginning is used."""

from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader
from rocketpoll.broker.server.client_connection import ClientFastPaths


class OneCode:
    """A fast path for requests of one code, which may process them one by one."""

    def __init__(self, code):
        self.code = code
        self.asked = 0
        self.accepts = True

    def learn(self, _connection, _header, request):
        return request.code == self.code

    def process(self, _connection, data, start):
        self.asked += 1
        return start + 4 + int.from_bytes(data[start : start + 4], "big") if self.accepts else start


def fed(*codes):
    reader = FrameReader()
    reader.feed(b"".join(RemotingCommand(code, opaque=n).encode() for n, code in enumerate(codes)))
    return reader


def learned(fast_paths, *codes):
    client = ClientFastPaths(fast_paths)
    reader = fed(*codes)
    while (frame := reader.next_frame()) is not None:
        client.learn(None, frame.header, decode_command(frame))
    return client


def test_fast_path_processes_requests_that_begin_like_those_it_learned():
    sends, pulls = fast_paths = OneCode(310), OneCode(11)
    client = learned(fast_paths, 310, 34)
    reader = fed(310, 310, 11, 310)
    assert client.process(None, reader)
    assert client.process(None, reader)
    assert not client.process(None, reader)  # no path knows it yet
    assert (sends.asked, pulls.asked) == (2, 0)
    assert decode_command(reader.next_frame()).code == 11
    assert client.process(None, reader)
    assert not client.process(None, reader)  # nothing is left
    assert reader.buffered_bytes == 0


def test_frame_refused_by_a_fast_path_stays_in_the_reader():
    fast_path = OneCode(310)
    client = learned([fast_path], 310)
    fast_path.accepts = False
    reader = fed(310)
    assert not client.process(None, reader)
    assert fast_path.asked == 1
    assert decode_command(reader.next_frame()).code == 310


def test_fast_path_patterns_per_client_are_limited():
    class Anything(OneCode):
        def learn(self, *_):
            return True

    fast_path = Anything(0)
    codes = [1_000 + number for number in range(40)]
    client = learned([fast_path], *codes)
    taken = [client.process(None, fed(code)) for code in codes]
    assert sum(taken) == 8  # of the last path
    assert all(taken[-8:])


def test_connection_without_fast_paths_processes_nothing():
    assert not learned([], 310).process(None, fed(310))
