"""The ext fields of requests and responses, as typed, frozen headers.

`table.HEADERS` maps each request code to its headers; `exchange_of` looks one up and imports only
the tables that it needs.
"""

from rmq_spark.wire.headers.codec import HeaderCodec, Int32, Int64
from rmq_spark.wire.headers.exchange import exchange_of
from rmq_spark.wire.headers.member_table import Exchange

__all__ = ["Exchange", "HeaderCodec", "Int32", "Int64", "exchange_of"]
