"""Certificates, TLS servers, and a TLS terminator in front of a plain broker.

The certificates are in `tests/certificates`; ``make.sh`` there describes each.
"""

import asyncio
import ssl
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

from rmq_spark.client.transport.tls.settings import TlsSettings

CERTIFICATES = Path(__file__).parents[2] / "certificates"
HOST = "127.0.0.2"
"""The host of terminators. They listen on the broker's port, so that the broker's routes lead to
them."""


def certificate(name):
    return str(CERTIFICATES / name)


TRUSTING = TlsSettings.of_files(ca_file=certificate("ca.pem"))
"""Settings of a client that trusts these servers."""


def server_context(name="server.pem", *, clients_of=None):
    """Return a server's SSL context; with ``clients_of``, clients need a certificate of this
    authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(name), certificate("server.key"))
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate(clients_of))
    return context


BROKER_TLS = {
    "tls.server.certPath": certificate("server.pem"),
    "tls.server.keyPath": certificate("server.key"),
}
"""Settings that make our broker accept TLS."""


def client_context(ca="ca.pem", *, version=None, own=None):
    """Return a client's SSL context that trusts an authority; optionally with a TLS version and a
    client certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificate(ca))
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if own is not None:
        context.load_cert_chain(certificate(own))
    return context


class Terminator:
    """Terminates TLS, and forwards to the broker on the same port of 127.0.0.1."""

    def __init__(self, port, context):
        self.address = f"{HOST}:{port}"
        self._port = port
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._clients = set()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="terminator")
        self.connected = 0
        """Number of successful handshakes."""
        self.cut_after = None
        """The number of response bytes after which the terminator cuts a connection."""

    def __enter__(self):
        __tracebackhide__ = True
        self._thread.start()
        assert self._is_ready.wait(10)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self):
        asyncio.set_event_loop(self._loop)
        listening = asyncio.start_server(self._serve, HOST, self._port, ssl=self._context)
        server = self._loop.run_until_complete(listening)
        self._is_ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(
            asyncio.gather(*asyncio.all_tasks(self._loop), return_exceptions=True)
        )
        self._loop.run_until_complete(server.wait_closed())
        self._loop.close()

    async def _serve(self, from_client, to_client):
        self.connected += 1
        from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self._port)
        ways = (
            self._pass_on(from_client, to_broker, None),
            self._pass_on(from_broker, to_client, to_client),
        )
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.wait(
                [asyncio.ensure_future(way) for way in ways], return_when="FIRST_COMPLETED"
            )
        for writer in (to_client, to_broker):
            writer.transport.abort()

    async def _pass_on(self, reader, writer, may_be_cut):
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if may_be_cut is not None and self.cut_after is not None:
                    data, is_cut = data[: self.cut_after], len(data) >= self.cut_after
                    self.cut_after -= len(data)
                    if is_cut:
                        self.cut_after = None
                        writer.write(data)
                        writer.close()
                        return
                writer.write(data)
                await writer.drain()


@contextmanager
def under_tls(port, **settings):
    with Terminator(port, server_context(**settings)) as terminator:
        yield terminator
