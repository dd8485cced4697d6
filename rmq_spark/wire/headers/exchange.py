"""Exchange of any request, found so that those who only send or consume load no more than theirs.

The tables are `member_table`, and `table` with the requests of operators, which is loaded with the
first request of an operator.
"""

from __future__ import annotations

from typing import Final

from rmq_spark.wire.headers.member_table import MEMBER_HEADERS, Exchange

_NO_HEADERS: Final = Exchange()


def exchange_of(code: int) -> Exchange:
    """Return the codecs for a request's and its response's header; none where nothing is read."""
    found = MEMBER_HEADERS.get(code)
    if found is None:
        from rmq_spark.wire.headers.table import HEADERS  # noqa: PLC0415  # for operators only

        found = HEADERS.get(code, _NO_HEADERS)
    return found
