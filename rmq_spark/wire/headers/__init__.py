"""The ext fields of requests and answers as typed, frozen headers.

`table.HEADERS` is the one table from a request's code to its headers; `exchange_of` looks one up
and loads no more than it must. A header says what a command means; it does not know how the command
was framed, nor what the broker will do with it.
"""

from rmq_spark.wire.headers.codec import HeaderCodec, Int32, Int64
from rmq_spark.wire.headers.exchange import exchange_of
from rmq_spark.wire.headers.member_table import Exchange

__all__ = ["Exchange", "HeaderCodec", "Int32", "Int64", "exchange_of"]
