"""Signatures: verifies that the owner of a secret key has signed a request.

RocketMQ's signature covers the values of the ext fields and the body, but neither the code nor a
time. So anyone who reads a request on its way can send it again; only TLS prevents that.
"""

from __future__ import annotations

import hashlib
import hmac
from binascii import b2a_base64
from collections.abc import Mapping
from hmac import compare_digest
from typing import Final

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import Buffer
from rmq_spark.wire.signature import SIGNATURE, sign

_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


def is_signed_by(request: RemotingCommand, secret_key: str) -> bool:
    """Return whether the signature of a request was made with this key, in constant time.

    The field ``_UNIQUE_KEY_QUERY`` of QUERY_MESSAGE may be signed or not: clients before 4.9.4 add
    it after they have signed, and RocketMQ's brokers differ in whether they expect it signed.
    """
    fields = request.ext_fields
    given = fields.get(SIGNATURE, "").encode(errors="replace")
    is_valid = hmac.compare_digest(sign(fields, request.body, secret_key).encode(), given)
    if not is_valid and request.code == RequestCode.QUERY_MESSAGE and _UNIQUE_KEY_QUERY in fields:
        without = sign(fields, request.body, secret_key, excluded=(_UNIQUE_KEY_QUERY,))
        is_valid = hmac.compare_digest(without.encode(), given)
    return is_valid


# ---- SignedTemplate: verifies many requests that differ in two fields and the body.

_BLOCK_BYTES: Final = 64
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))


class SignedTemplate:
    """HMAC-SHA1 of what all requests of one form share, continued for each request.

        signed content      AccessKey, a, b, .. f | g | h | i | j, .. m | body
        in one template     ------- before -------   ^       ^   - after -

    Fast paths take requests that differ in two fields of the header only. The other values are
    hashed once, so that verifying a signature takes a third of the time of the usual path.
    """

    __slots__ = ("_after", "_inner", "_middle", "_outer")

    def __init__(
        self, ext_fields: Mapping[str, str], varying: tuple[str, str], secret_key: str
    ) -> None:
        """Prepare for requests like the one with these fields; ``varying`` are in signed order.

        Raises:
            KeyError: A varying field is missing.
            UnicodeEncodeError: A value cannot be signed.
        """
        before, middle, after = _pieces(ext_fields, varying)
        key = secret_key.encode()
        if len(key) > _BLOCK_BYTES:
            key = hashlib.sha1(key, usedforsecurity=False).digest()
        key = key.ljust(_BLOCK_BYTES, b"\0")
        # HMAC does not depend on SHA-1's resistance to collisions, which is broken.
        self._inner = hashlib.sha1(key.translate(_INNER) + before, usedforsecurity=False)
        self._outer = hashlib.sha1(key.translate(_OUTER), usedforsecurity=False)
        self._middle, self._after = middle, after

    def is_valid_signature(
        self, first: bytes, second: bytes, body: Buffer, signature: bytes
    ) -> bool:
        """Return whether a request with these varying values and body has the right signature."""
        inner = self._inner.copy()
        inner.update(b"".join((first, self._middle, second, self._after, body)))
        outer = self._outer.copy()
        outer.update(inner.digest())
        return compare_digest(b2a_base64(outer.digest(), newline=False), signature)


class UnsignedTemplate:
    """Accepts all requests of one form: their client's address needs no signature."""

    __slots__ = ()

    def is_valid_signature(
        self, first: bytes, second: bytes, body: Buffer, signature: bytes
    ) -> bool:
        """Return True, whatever the signature is."""
        del first, second, body, signature
        return True


def _pieces(ext_fields: Mapping[str, str], varying: tuple[str, str]) -> tuple[bytes, bytes, bytes]:
    """Return the signed values before, between and after two fields."""
    names = sorted(ext_fields.keys() - {SIGNATURE}, key=lambda name: name.encode("utf-16-be"))
    first, second = map(names.index, varying) if set(varying) <= set(names) else (-1, -1)
    if not 0 <= first < second:
        raise KeyError(varying)
    runs = names[:first], names[first + 1 : second], names[second + 1 :]
    before, middle, after = ("".join(map(ext_fields.__getitem__, run)).encode() for run in runs)
    return before, middle, after
