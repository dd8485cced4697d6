"""OpenSSL accepts certificates of a throw-away authority, and those of no other authority."""

import hashlib
import random
import shutil
import ssl
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpoll.broker.embedded.throwaway_authority import EcKey, ThrowawayAuthority
from rocketpoll.broker.server.tls.validity import certificates_of_pem, validity_of_der

# The curve P-256, from its standard
P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
BASE = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)

MULTIPLES = {
    1: BASE,
    2: (
        0x7CF27B188D034F7E8A52380304B51AC3C08969E277F21B35A60B48FC47669978,
        0x07775510DB8ED040293D9AC69F7430DBBA7DADE63CE982299E04B79D227873D1,
    ),
    112233445566778899: (
        0x339150844EC15234807FE862A86BE77977DBFB3AE3D96F4C22795513AEAAB82F,
        0xB1C14DDFDC8EC1B2583F51E85A5EB3A155840F2034730E9B5ADA38B674336A21,
    ),
    ORDER - 1: (BASE[0], P - BASE[1]),
}


def multiple(factor):
    """Multiply the base point: the public key of a private key."""
    point = EcKey.generate(lambda size: factor.to_bytes(size, "big")).public
    return int.from_bytes(point[1:33], "big"), int.from_bytes(point[33:], "big")


def seeded(seed):
    return random.Random(seed).randbytes


@pytest.mark.parametrize(("factor", "point"), MULTIPLES.items(), ids=map(str, MULTIPLES))
def test_multiples_of_the_base_point_equal_known_values(factor, point):
    assert multiple(factor) == point


@given(st.integers(1, ORDER - 2))
def test_multiples_of_the_base_point_and_their_negatives_lie_on_the_curve(factor):
    x, y = multiple(factor)
    assert (y * y - x * x * x + 3 * x - B) % P == 0
    assert multiple(ORDER - factor) == (x, P - y)


@given(st.integers(0, 1 << 64), st.binary(max_size=200))
def test_ecdsa_signatures_verify(seed, data):
    """As defined by ECDSA: the x coordinate of (z / s) G + (r / s) Q is r, with Q the
    public point."""
    key = EcKey.generate(seeded(seed))
    signature = key.sign(data, seeded(seed + 1))
    size = signature[3]
    r = int.from_bytes(signature[4 : 4 + size], "big")
    s = int.from_bytes(signature[6 + size :], "big")
    digest = int.from_bytes(hashlib.sha256(data).digest(), "big")
    inverse = pow(s, -1, ORDER)
    combined = (digest * inverse + r * inverse * key.secret) % ORDER
    assert multiple(combined)[0] % ORDER == r


def contexts(directory, authority, server, client=None):
    """Return a server's context, and a client's that trusts the authority."""
    directory.mkdir(exist_ok=True)
    (directory / "server.pem").write_text(server)
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(directory / "server.pem")
    of_client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    of_client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    of_client.load_verify_locations(cadata=authority.certificate)
    if client is not None:
        (directory / "client.pem").write_text(client)
        of_client.load_cert_chain(directory / "client.pem")
        of_server.verify_mode = ssl.CERT_REQUIRED
        of_server.verify_flags |= ssl.VERIFY_X509_STRICT
        of_server.load_verify_locations(cadata=authority.certificate)
    return of_server, of_client


def handshake(of_server, of_client, name):
    """Do a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = of_server.wrap_bio(to_server, to_client, server_side=True)
    client = of_client.wrap_bio(to_client, to_server, server_hostname=name)
    waiting = [client, server]
    while waiting:
        for end in tuple(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    return client


NAMES = ("localhost", "127.0.0.1", "::1")


@given(st.integers(0, 1 << 64))
def test_openssl_accepts_certificates_of_any_keys(tmp_path_factory, seed):
    authority = ThrowawayAuthority(seeded(seed))
    server, client = authority.issue_server(NAMES), authority.issue_client()
    both = contexts(tmp_path_factory.getbasetemp() / "any", authority, server, client)
    assert handshake(*both, "localhost").getpeercert()["subject"] == (
        (("commonName", "rocketpoll server"),),
    )


def test_throwaway_certificate_has_exactly_the_given_names(tmp_path):
    authority = ThrowawayAuthority()
    both = contexts(tmp_path, authority, authority.issue_server(NAMES))
    for name in NAMES:
        handshake(*both, name)
    for name in ("127.0.0.2", "example"):
        with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|doesn't match"):
            handshake(*both, name)


def test_throwaway_certificate_is_not_trusted_by_another_authority(tmp_path):
    one, other = ThrowawayAuthority(), ThrowawayAuthority()
    of_server, _ = contexts(tmp_path, one, one.issue_server(NAMES))
    _, of_client = contexts(tmp_path, other, other.issue_server(NAMES))
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        handshake(of_server, of_client, "localhost")


def test_throwaway_client_certificate_is_not_valid_for_a_server(tmp_path):
    authority = ThrowawayAuthority()
    both = contexts(tmp_path, authority, authority.issue_client())
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        handshake(*both, "localhost")


def test_throwaway_certificates_are_valid_from_2020_to_2120():
    authority = ThrowawayAuthority()
    for pem in (authority.certificate, authority.issue_client()):
        [certificate] = certificates_of_pem(pem)
        assert validity_of_der(certificate) == (1_577_836_800, 4_733_510_400)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="asks the openssl command")
def test_openssl_command_verifies_throwaway_certificates_strictly(tmp_path):
    authority = ThrowawayAuthority()
    (tmp_path / "ca.pem").write_text(authority.certificate)
    (tmp_path / "server.pem").write_text(authority.issue_server(NAMES))
    verify = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", "ca.pem"]
    subprocess.run([*verify, "server.pem"], cwd=tmp_path, check=True, capture_output=True)
    check = ["openssl", "pkey", "-in", "server.pem", "-noout", "-check"]
    subprocess.run(check, cwd=tmp_path, check=True, capture_output=True)


def test_throwaway_certificates_have_different_serial_numbers(tmp_path):
    """Firefox, NSS and Java's stores identify a certificate by its issuer and serial number."""
    authority = ThrowawayAuthority()
    both = contexts(tmp_path, authority, authority.issue_server(NAMES))
    first = handshake(*both, "localhost").getpeercert()["serialNumber"]
    both = contexts(tmp_path, authority, authority.issue_server(NAMES))
    assert handshake(*both, "localhost").getpeercert()["serialNumber"] != first
