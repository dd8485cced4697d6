"""Exchange lookup: finds the header codecs of a request, and imports no more tables than needed.

The tables are `member_table`, and `table` with the requests of operators, which is imported at the
first request of an operator.
"""

from __future__ import annotations

from typing import Final

from rmq_spark.wire.headers.member_table import MEMBER_HEADERS, Exchange

_NO_HEADERS: Final = Exchange()


def exchange_of(code: int) -> Exchange:
    """Return the codecs of a request's and its response's header; None if there are no fields."""
    found = MEMBER_HEADERS.get(code)
    if found is None:
        from rmq_spark.wire.headers.table import HEADERS  # noqa: PLC0415  # for operators only

        found = HEADERS.get(code, _NO_HEADERS)
    return found
