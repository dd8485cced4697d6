"""The signature by which a broker of 4.9 with ACL, or of 5.x with authentication, knows a request.

Signed is what the ext fields hold, signature apart: their values without separators, in the order of
their names as Java orders texts, and behind them the body. The MAC is HMAC-SHA1, in base64.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Collection, Mapping

from rmq_spark.wire.framing import Buffer

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105  # the name of a field
SIGNATURE = "Signature"


def sign(
    ext_fields: Mapping[str, str],
    body: Buffer,
    secret_key: str,
    *,
    without: Collection[str] = (),
) -> str:
    """The signature of a request. ``without`` names fields that the peer leaves out as well."""
    signed = sorted(
        (name for name in ext_fields if name != SIGNATURE and name not in without),
        key=_java_order,
    )
    mac = hmac.new(secret_key.encode(), digestmod="sha1")
    mac.update("".join(ext_fields[name] for name in signed).encode())
    mac.update(body)
    return b64encode(mac.digest()).decode()


def signed_fields(
    ext_fields: Mapping[str, str],
    body: Buffer,
    *,
    access_key: str,
    secret_key: str,
    security_token: str | None = None,
) -> dict[str, str]:
    """The ext fields with who asks and the signature added."""
    fields = {**ext_fields, ACCESS_KEY: access_key}
    if security_token is not None:
        fields[SECURITY_TOKEN] = security_token
    return {**fields, SIGNATURE: sign(fields, body, secret_key)}


def signature_is_valid(
    ext_fields: Mapping[str, str],
    body: Buffer,
    secret_key: str,
    *,
    without: Collection[str] = (),
) -> bool:
    """Whether the request was signed with this key; takes the same time for every wrong answer."""
    given = ext_fields.get(SIGNATURE, "").encode()
    return hmac.compare_digest(sign(ext_fields, body, secret_key, without=without).encode(), given)


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
