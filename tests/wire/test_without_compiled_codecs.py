"""Wire code works without lz4, zstd and msgpack, as with an archive of rocketpoll in a cluster's
Python."""

from support.programs.python_programs import python_program

from rocketpoll import EmbeddedBroker

WITHOUT = """
import sys
for name in ("isal", "lz4", "lz4.frame", "backports", "backports.zstd", "compression", "msgpack"):
    sys.modules[name] = None
"""


def test_missing_codec_packages_are_named_only_when_needed(tmp_path):
    program = f"""{WITHOUT}
from rmq_spark.errors import BodyError
from rmq_spark.wire.compression import compress_body, uncompress_body
from rmq_spark.wire.codes import MessageSysFlag as Flag

zipped = compress_body(b"body", Flag.COMPRESSION_ZLIB)
print(bytes(uncompress_body(zipped, Flag.COMPRESSED | Flag.COMPRESSION_ZLIB)))
for flag in (Flag.COMPRESSION_LZ4, Flag.COMPRESSION_ZSTD):
    def uncompress():
        uncompress_body(b"x", Flag.COMPRESSED | flag)
    def compress():
        compress_body(b"x", flag)
    for use in (uncompress, compress):
        try:
            use()
        except BodyError as error:
            print(error)
"""
    done = python_program(program, cwd=tmp_path)
    assert done.stderr == ""
    body, *refused = done.stdout.splitlines()
    assert body == "b'body'"
    assert ["pip install lz4" in line for line in refused] == [True, True, False, False]
    assert ["pip install backports.zstd" in line for line in refused] == [False, False, True, True]


def test_msgpack_header_without_the_library_says_what_to_install(tmp_path):
    program = f"""{WITHOUT}
from rmq_spark.wire.remoting import header_msgpack
from rmq_spark.errors import HeaderError

try:
    header_msgpack.decode_header(b"x")
except HeaderError as error:
    print(error)
"""
    done = python_program(program, cwd=tmp_path)
    assert "pip install msgpack" in done.stdout, done.stderr


def test_messages_are_sent_and_read_without_any_of_them(tmp_path):
    program = f"""{WITHOUT}
from rocketpoll import Message, Producer

with Producer("P", sys.argv[1]) as producer:
    for body in (b"one", b"two"):
        producer.send(Message("orders", body))
"""
    with EmbeddedBroker() as broker:
        broker.create_topic("orders", queues=1)
        done = python_program(program, broker.address, cwd=tmp_path)
        assert done.stderr == ""
        assert [message.body for message in broker.messages("orders")] == [b"one", b"two"]
