"""Faults of TLS, and how to mend them: OpenSSL's reasons in a user's words.

This module connects to nothing.
"""

from __future__ import annotations

import errno
import ssl
from typing import Final

NO_TLS_THERE: Final = (
    "it ended the handshake without a word, as one without TLS does: turn TLS on there, or leave "
    "it out here"
)
_OTHER_THERE: Final = (
    "what answers there does not speak TLS: turn TLS on there, or leave it out here"
)
_CHANGED: Final = "what came was changed on its way, or did not come from the broker"
_WANTS_TO_KNOW_US: Final = (
    "the broker takes only clients that it knows: give a certificate of its authority, and the key"
)
_NOT_TRUSTED: Final = (
    "its certificate is not trusted ({}): the CA file has to hold the authority that has signed it"
)

_NAME_FAULTS: Final = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_TIME_FAULTS: Final = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED

# A part of OpenSSL's reason (releases vary in the rest) and its explanation;
# the first match counts.
_REASONS: Final = (
    ("CERTIFICATE_REQUIRED", _WANTS_TO_KNOW_US),
    (
        "ALERT_HANDSHAKE_FAILURE",
        f"no agreement with the broker. Either {_WANTS_TO_KNOW_US}; or no cipher fits",
    ),
    ("ALERT_BAD_CERTIFICATE", _WANTS_TO_KNOW_US),
    (
        "ALERT_UNKNOWN_CA",
        "the broker does not trust this client's certificate: it needs one of its authority",
    ),
    (
        "ALERT_CERTIFICATE_UNKNOWN",
        "the broker does not accept this client's certificate: see its log",
    ),
    ("ALERT_CERTIFICATE_EXPIRED", "this client's certificate has expired: it needs a new one"),
    ("UNRECOGNIZED_NAME", "the broker has no certificate of that name: check the server name"),
    ("PROTOCOL", "the broker's TLS is too old: TLS 1.2 is the least here"),
    ("WRONG_VERSION_NUMBER", _OTHER_THERE),
    ("RECORD_LAYER_FAILURE", _OTHER_THERE),
    ("PACKET_LENGTH_TOO_LONG", _OTHER_THERE),
    ("UNEXPECTED_EOF", NO_TLS_THERE),
)

# What OpenSSL's releases call bytes that do not fit, of a peer that has spoken
# TLS in the handshake.
_BAD_BYTES: Final = (
    "BAD_RECORD_MAC",
    "RECORD_LAYER_FAILURE",
    "WRONG_VERSION_NUMBER",
    "PACKET_LENGTH_TOO_LONG",
)


def why_tls_failed(error: OSError) -> str:
    """Return the explanation of a handshake that failed, for the user."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _why_not_trusted(error)
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError)):
        return NO_TLS_THERE
    if error.errno == errno.ENOTCONN:  # closed by the broker before the handshake
        return NO_TLS_THERE
    reason = getattr(error, "reason", None) or ""
    for part, why in _REASONS:
        if part in reason:
            return f"{why} ({reason})"
    return error.strerror or str(error)


def why_tls_ended(error: OSError) -> str:
    """Return the explanation of an error behind the handshake.

    A server may still refuse a client there.
    """
    reason = getattr(error, "reason", None) or ""
    if any(part in reason for part in _BAD_BYTES):
        return f"{_CHANGED} ({reason})"
    return why_tls_failed(error)


def _why_not_trusted(error: ssl.SSLCertVerificationError) -> str:
    said = error.verify_message.rstrip(".")
    if error.verify_code in _NAME_FAULTS:
        return (
            f"its certificate is another's ({said}): dial a name that it bears, or give one as "
            "server name"
        )
    if error.verify_code in _TIME_FAULTS:
        return (
            f"its certificate is out of date ({said}): the broker needs a new one, if this clock "
            "is right"
        )
    return _NOT_TRUSTED.format(said)
