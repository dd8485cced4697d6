"""Signature: signs requests for a broker of 4.9 with ACL, or of 5.x with authentication.

The signed content is the values of all ext fields except the signature, without separators, in the
order of their names as Java sorts strings, followed by the body. The MAC is HMAC-SHA1, in base64.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final

from rmq_spark.errors import HeaderError, Verbatim
from rmq_spark.wire.remoting.framing import Buffer

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105  # the name of a field
SIGNATURE = "Signature"
_COPIED_BYTES_MAX: Final = 65_536
"""The longest body that is copied for a MAC in one call; for longer ones, two calls are faster."""


def sign(
    ext_fields: Mapping[str, str],
    body: Buffer,
    secret_key: str,
    *,
    excluded: Collection[str] = (),
) -> str:
    """Return the signature of a request; ``excluded`` names fields that the peer omits too."""
    names = _signed_names(tuple(ext_fields), tuple(excluded))
    key = _utf8(secret_key, "the secret key")
    try:
        fields = "".join([ext_fields[name] for name in names]).encode()
    except UnicodeEncodeError:
        fields = b"".join([_utf8(ext_fields[name], name) for name in names])
    if len(body) <= _COPIED_BYTES_MAX:
        return b64encode(hmac.digest(key, b"".join((fields, body)), "sha1")).decode()
    mac = hmac.new(key, fields, "sha1")
    mac.update(body)
    return b64encode(mac.digest()).decode()


@lru_cache(maxsize=1_024)  # a program sends few kinds of requests
def _signed_names(names: tuple[str, ...], excluded: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the signed fields in the order in which Java sorts strings."""
    signed = (name for name in names if name != SIGNATURE and name not in excluded)
    return tuple(sorted(signed, key=lambda name: name.encode("utf-16-be", "surrogatepass")))


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
            "signature",
            at=name,
            needed="text that UTF-8 can encode",
            found=Verbatim("a lone surrogate"),
        ) from error
