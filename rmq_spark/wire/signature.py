"""Signature: signs requests for a broker of 4.9 with ACL, or of 5.x with authentication.

The signed content is the values of all ext fields except the signature, without separators, in the
order of their names as Java sorts strings, followed by the body. The MAC is HMAC-SHA1, in base64.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Collection, Mapping

from rmq_spark.errors import HeaderError, Verbatim
from rmq_spark.wire.framing import Buffer

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105  # the name of a field
SIGNATURE = "Signature"


def sign(
    ext_fields: Mapping[str, str],
    body: Buffer,
    secret_key: str,
    *,
    excluded: Collection[str] = (),
) -> str:
    """Return the signature of a request; ``excluded`` names fields that the peer omits too."""
    signed = sorted(
        (name for name in ext_fields if name != SIGNATURE and name not in excluded),
        key=lambda name: name.encode("utf-16-be", "surrogatepass"),  # as Java sorts strings
    )
    mac = hmac.new(_utf8(secret_key, "the secret key"), digestmod="sha1")
    for name in signed:
        mac.update(_utf8(ext_fields[name], name))
    mac.update(body)
    return b64encode(mac.digest()).decode()


def signed_fields(
    ext_fields: Mapping[str, str],
    body: Buffer,
    *,
    access_key: str,
    secret_key: str,
    security_token: str | None = None,
    excluded: Collection[str] = (),
) -> dict[str, str]:
    """Return the ext fields with the access key and the signature added.

    A broker of 4.9.4 to 4.9.8 omits ``_UNIQUE_KEY_QUERY`` from the signature; others omit nothing.
    """
    fields = {**ext_fields, ACCESS_KEY: access_key}
    if security_token is not None:
        fields[SECURITY_TOKEN] = security_token
    return {**fields, SIGNATURE: sign(fields, body, secret_key, excluded=excluded)}


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        # The value is not shown, because it may be the secret key.
        raise HeaderError(
            "signature", at=name, needed="text that UTF-8 holds", found=Verbatim("a lone surrogate")
        ) from error
