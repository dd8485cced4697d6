"""The ext fields of requests and responses, as typed, frozen headers.

`operators.HEADERS` maps each request code to its headers. `exchange_of` looks one up. It imports
`operators` at the first request of an operator, because programs that send or consume do not need
that module.
"""

from rmq_spark.wire.headers.codec import HeaderCodec, Int32, Int64
from rmq_spark.wire.headers.members import MEMBER_HEADERS, Exchange

__all__ = ["Exchange", "HeaderCodec", "Int32", "Int64", "exchange_of"]


def exchange_of(code: int) -> Exchange:
    """Return the codecs of a request's and its response's header; each is None without fields."""
    found = MEMBER_HEADERS.get(code)
    if found is None:
        from rmq_spark.wire.headers.operators import HEADERS  # noqa: PLC0415  # for operators only

        found = HEADERS.get(code, Exchange())
    return found
