"""The ext fields of requests and answers as typed, frozen headers.

`HEADERS` is the one table from a request's code to its headers. A header says what a command means;
it does not know how the command was framed, nor what the broker will do with it.
"""

from rmq_spark.wire.headers.codec import HeaderCodec, Int32, Int64
from rmq_spark.wire.headers.table import HEADERS, Exchange

__all__ = ["HEADERS", "Exchange", "HeaderCodec", "Int32", "Int64"]
