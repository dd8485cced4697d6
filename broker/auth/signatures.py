"""Signatures: verifies that the owner of a secret key has signed a request.

RocketMQ's signature covers the values of the ext fields and the body; not the code, and no time. So
anyone who reads a request on its way can send it again; only TLS prevents that.
"""

from __future__ import annotations

import hmac
from typing import Final

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.signature import SIGNATURE, sign

_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


def is_signed_by(request: RemotingCommand, secret_key: str) -> bool:
    """Return whether the signature of a request was made with this key, in constant time.

    The field ``_UNIQUE_KEY_QUERY`` of QUERY_MESSAGE may be signed or not: clients before 4.9.4 add
    it after they have signed, and some brokers of RocketMQ expect one form, others the other.
    """
    fields = request.ext_fields
    given = fields.get(SIGNATURE, "").encode(errors="replace")
    is_valid = hmac.compare_digest(sign(fields, request.body, secret_key).encode(), given)
    if not is_valid and request.code == RequestCode.QUERY_MESSAGE and _UNIQUE_KEY_QUERY in fields:
        without = sign(fields, request.body, secret_key, excluded=(_UNIQUE_KEY_QUERY,))
        is_valid = hmac.compare_digest(without.encode(), given)
    return is_valid
