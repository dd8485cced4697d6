"""A power loss drops exactly the writes of a file since its last flush."""

from hypothesis import given
from hypothesis import strategies as st

from rocketpoll.broker.embedded.faults.embedded_disk import PAGE_BYTES, UnflushedBytes

SIZE = 3 * PAGE_BYTES


class File:
    """A file in memory, and its unflushed writes."""

    def __init__(self, content=b""):
        self.data = bytearray(content.ljust(SIZE, b"\0"))
        self.unflushed = UnflushedBytes(len(content))

    def write(self, position, data):
        self.unflushed.before_write(
            position, len(data), lambda at, size: bytes(self.data[at : at + size])
        )
        self.data[position : position + len(data)] = data

    def flush(self):
        self.unflushed.finish_flush(self.unflushed.start_flush(), is_durable=True)

    def lose_power(self):
        def restore(position, data):
            self.data[position : position + len(data)] = data

        def cut(position):
            self.data[position:] = bytes(SIZE - position)

        self.unflushed.restore(restore, cut)
        return bytes(self.data)


places = st.integers(0, SIZE - 40)
writes = st.tuples(places, st.binary(min_size=1, max_size=40))


@given(st.binary(max_size=SIZE), st.lists(writes | st.just("flush"), max_size=20))
def test_power_loss_restores_the_last_flush(content, steps):
    file = File(content)
    flushed = bytes(file.data)
    for step in steps:
        if step == "flush":
            file.flush()
            flushed = bytes(file.data)
        else:
            file.write(*step)
    assert file.lose_power() == flushed


def test_flush_covers_writes_before_its_start():
    file = File()
    file.write(0, b"one")
    flush = file.unflushed.start_flush()
    file.write(0, b"two")
    file.unflushed.finish_flush(flush, is_durable=True)
    assert file.lose_power()[:3] == b"one"


def test_unfinished_or_failed_flush_covers_nothing():
    for end in (lambda *_: None, lambda file, flush: file.finish_flush(flush, is_durable=False)):
        file = File(b"before")
        file.write(0, b"one")
        end(file.unflushed, file.unflushed.start_flush())
        file.write(1, b"two")
        assert file.lose_power()[:6] == b"before"


def test_later_of_two_flushes_covers_all_writes():
    file = File(b"before")
    file.write(0, b"one")
    first = file.unflushed.start_flush()
    file.write(3, b"two")
    second = file.unflushed.start_flush()
    file.unflushed.finish_flush(second, is_durable=True)
    file.unflushed.finish_flush(first, is_durable=False)
    assert file.lose_power()[:6] == b"onetwo"
