"""OpenSSL's errors in plain words; test_tls_client tests those that servers really cause."""

import ssl

import pytest

from rmq_spark.client.transport.tls.client import (
    NO_TLS_AT_PEER,
    explain_handshake_error,
    explain_tls_error,
)


class Said(ssl.SSLError):
    """An error of OpenSSL with a reason."""

    reason = "SOMETHING_NEW"

    def __init__(self, reason):
        super().__init__(1, f"[SSL: {reason}] in lower case (_ssl.c:1006)")
        self.reason = reason


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "requires a certificate from clients"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "no cipher fits"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", "requires a certificate from clients"),
        ("TLSV1_ALERT_UNKNOWN_CA", "does not trust this client's certificate"),
        ("SSLV3_ALERT_CERTIFICATE_UNKNOWN", "See its log"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "this client's certificate has expired"),
        ("TLSV1_UNRECOGNIZED_NAME", "Check the server name"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "Turn on TLS 1.2 or newer there"),
        ("UNSUPPORTED_PROTOCOL", "Turn on TLS 1.2 or newer there"),
        ("WRONG_VERSION_NUMBER", "does not speak TLS"),
        ("RECORD_LAYER_FAILURE", "does not speak TLS"),
        ("UNEXPECTED_EOF_WHILE_READING", NO_TLS_AT_PEER),
    ],
)
def test_tls_handshake_error_is_explained_with_openssls_reason(reason, says):
    said = explain_handshake_error(Said(reason))
    assert says in said
    assert said.endswith(f"({reason})")


def test_unknown_tls_error_reason_is_passed_on():
    assert "SOMETHING_NEW" in explain_handshake_error(Said("SOMETHING_NEW"))
    assert explain_handshake_error(OSError(5, "Input/output error")) == "Input/output error"


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLEOFError(8, "EOF"),
        ssl.SSLZeroReturnError(6, "closed"),  # as in Debian 12's Python
        ConnectionResetError(104, "reset"),
    ],
    ids=["end of file", "closed", "reset"],
)
def test_tls_end_of_file_is_explained_as_a_plain_server(error):
    assert explain_handshake_error(error) == NO_TLS_AT_PEER


@pytest.mark.parametrize("reason", ["DECRYPTION_FAILED_OR_BAD_RECORD_MAC", "RECORD_LAYER_FAILURE"])
def test_tls_record_error_is_explained_as_changed_bytes(reason):
    said = explain_tls_error(Said(reason))
    assert said == f"the data was changed on its way, or did not come from the broker ({reason})"


def test_tls_certificate_required_alert_is_explained():
    assert "requires a certificate from clients" in explain_tls_error(
        Said("TLSV13_ALERT_CERTIFICATE_REQUIRED")
    )
