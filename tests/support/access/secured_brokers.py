"""Brokers of both kinds with access lists, most of them reachable over TLS only.

There are four users: an operator, one who may send to some topics, one who may consume these in
some groups, and one without rights. A 5.x broker has them as users with policies, a 4.9 broker as
accounts of a plain_acl.yml.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from support.access.answers import OPERATOR, WITH_USERS, Asker, make_user
from support.access.lists import SECRET, entry
from support.access.requests import create_topic
from support.access.signed_client import Key, SignedClient
from support.brokers.broker_kinds import (
    NAME,
    START_SECONDS_MAX,
    RocketMQBroker,
    RocketPollBroker,
    RunningBroker,
    wait_until,
)
from support.rocketmq.real_broker import write_settings
from support.servers.tls import certificate
from support.suite.selection import PEERS

from rocketpoll.broker.store.config import FlushDiskType

WRITER, READER = Key("the-writer", SECRET), Key("the-reader", SECRET)
NOBODY, WRONG = Key("nobody-knows", SECRET), Key(READER.name, "wrong-secret")
IDLE = Key("the-idle", SECRET)
TOPICS = tuple(f"Topic{number}" for number in range(8))
GROUPS = tuple(f"group{number}" for number in range(8))
UNLISTED = "Unlisted"

PLAIN_ACL = f"""
globalWhiteRemoteAddresses: []
accounts:
- accessKey: {OPERATOR.name}
  secretKey: '{OPERATOR.secret}'
  admin: true
- accessKey: {WRITER.name}
  secretKey: '{WRITER.secret}'
  topicPerms: [{", ".join(f"{topic}=PUB" for topic in TOPICS)}]
- accessKey: {READER.name}
  secretKey: '{READER.secret}'
  topicPerms: [{", ".join(f"{topic}=SUB" for topic in TOPICS)}]
  groupPerms: [{", ".join(f"{group}=SUB" for group in GROUPS)}]
- accessKey: {IDLE.name}
  secretKey: '{IDLE.secret}'
"""

_CERTIFICATES = {
    "tls.server.keyPath": certificate("server.key"),
    "tls.server.certPath": certificate("server.pem"),
    "tls.server.authClient": "true",
    "tls.server.need.client.auth": "require",
    "tls.server.trustCertPath": certificate("ca.pem"),
}
_OF_CLIENTS = {
    "tls.test.mode.enable": "false",
    "tls.client.keyPath": certificate("client.key"),
    "tls.client.certPath": certificate("client.crt"),
    "tls.client.authServer": "true",
    "tls.client.trustCertPath": certificate("ca.pem"),
}


class Secured(NamedTuple):
    """A kind of broker, a kind of access lists, and a client version and header codec."""

    kind: str
    version: str
    lists: str
    codec: str

    def __str__(self) -> str:
        return " ".join(self)


def every_secured() -> list[Secured]:
    """Return all combinations of client version and header codec; our broker has both kinds of
    lists."""
    ours = [
        Secured("rocketpoll", "4.9.7", "accounts", "JSON"),
        Secured("rocketpoll", "4.9.7", "users", "ROCKETMQ"),
        Secured("rocketpoll", "5.5.0", "users", "JSON"),
        Secured("rocketpoll", "5.5.0", "accounts", "ROCKETMQ"),
    ]
    real = [
        Secured("rocketmq", version, lists, codec)
        for version, lists in (("4.9.7", "accounts"), ("5.5.0", "users"))
        for codec in ("JSON", "ROCKETMQ")
    ]
    return [*real, *ours] if PEERS else ours


def tls_options(directory: Path) -> tuple[str, ...]:
    """Return JVM options for clients that verify the broker and have a certificate."""
    file = write_settings(directory / "tls.properties", {**_CERTIFICATES, **_OF_CLIENTS})
    return (f"-Dtls.config.file={file}", "-Dtls.server.mode=enforcing", "-Dtls.enable=true")


def client_context() -> ssl.SSLContext:
    """Return the SSL context of a Python client."""
    context = ssl.create_default_context(cafile=certificate("ca.pem"))
    context.load_cert_chain(certificate("client.pem"))
    return context


def secured_broker(
    secured: Secured, directory: Path, *, has_tls: bool = True
) -> Iterator[RunningBroker]:
    """Yield a broker with its topics, users and lists."""
    broker = _started(secured, directory, has_tls=has_tls)
    context = client_context() if has_tls else None
    try:
        wait_until("a broker that answers", lambda: _answers(broker, context), START_SECONDS_MAX)
        with ExitStack() as stack:
            asker = Asker(broker.address, {}, stack, context)
            for topic in (*TOPICS, UNLISTED):
                assert not asker.ask(create_topic(topic), OPERATOR).code
            if secured.lists == "users":
                _make_users(asker)
        yield broker
    finally:
        broker.close()


def _started(secured: Secured, directory: Path, *, has_tls: bool) -> RunningBroker:
    home = directory / NAME
    (home / "conf").mkdir(parents=True)
    plain_acl = home / "conf" / "plain_acl.yml"
    plain_acl.write_text(PLAIN_ACL, encoding="ascii")
    flush = FlushDiskType.ASYNC_FLUSH
    if secured.kind == "rocketmq":
        more = WITH_USERS if secured.lists == "users" else {"aclEnable": "true"}
        options = tls_options(directory) if has_tls else ()
        return RocketMQBroker(secured.version, directory, flush, more, options)
    return RocketPollBroker(
        secured.version,
        directory,
        flush,
        more={
            **({**_CERTIFICATES, "tls.server.mode": "enforcing"} if has_tls else {}),
            **(OUR_USERS if secured.lists == "users" else our_accounts(plain_acl)),
        },
    )


def _make_users(asker: Asker) -> None:
    topics = [f"Topic:{topic}" for topic in TOPICS]
    groups = [f"Group:{group}" for group in GROUPS]
    make_user(asker, WRITER.name, {"CUSTOM": [entry(topic, "Pub") for topic in topics]})
    make_user(asker, READER.name, {"CUSTOM": [entry(each, "Sub") for each in (*topics, *groups)]})
    make_user(asker, IDLE.name, {})


def _answers(broker: RunningBroker, context: ssl.SSLContext | None) -> bool:
    try:
        with SignedClient(broker.address, tls=context) as client:
            return client.ask(26, key=OPERATOR).code == 0
    except OSError:
        return False


OUR_USERS = {
    name: WITH_USERS[name]
    for name in ("authenticationEnabled", "authorizationEnabled", "initAuthenticationUser")
}


def our_accounts(plain_acl: Path) -> dict[str, object]:
    """Return the settings that make our broker read a plain_acl.yml."""
    return {"aclEnable": "true", "plainAclFile": plain_acl}
