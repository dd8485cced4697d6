"""Vectors of access control: the answers of real RocketMQ brokers to the requests of this package.

`python -m support.access.answers` asks real brokers of both versions and writes their answers to
tests/vectors/access. Tests compare the answers of our broker with them.
"""

from __future__ import annotations

import json
import re
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from support.access.lists import (
    ADMINISTRATION,
    BY_A_MANAGER,
    LISTS,
    ODDITIES,
    SECRET,
    Entry,
    TriedList,
    entry,
    policy,
)
from support.access.plain_lists import ACCOUNTS, ADDRESSES, NAMES, PLAIN_ACL
from support.access.requests import (
    QUERY,
    REQUESTS,
    SEND_V2,
    UNIQUE_KEY,
    Request,
    as_json,
    create_topic,
)
from support.access.signed_client import Answer, Key, SignedClient
from support.brokers.broker_kinds import NAME, START_SECONDS_MAX, RocketMQBroker, wait_until

from rmq_spark.wire.codes import SerializeType
from rmq_spark.wire.signature import sign
from rocketpoll.broker.store.config import FlushDiskType

DIRECTORY = Path(__file__).parents[2] / "vectors" / "access"

OPERATOR = Key("operator", "87654321")
STRANGERS = {
    "no key": None,
    "unknown": Key("nobody", SECRET),
    "wrong secret": Key(OPERATOR.name, "wrong"),
    "disabled": Key("disabled", SECRET),
    "no right": Key("nothing", SECRET),
}
"""Keys without any rights in 5.5.0, for all requests that it checks."""

RESOURCES = ("Topic", "Group", "Cluster")
ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
TOPICS = ("Orders", "Other")

_AUTH = "org.apache.rocketmq.auth"
WITH_USERS = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "initAuthenticationUser": json.dumps({"username": OPERATOR.name, "password": OPERATOR.secret}),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": OPERATOR.name, "secretKey": OPERATOR.secret}
    ),
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": (
        f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
}
"""Settings of a 5.5.0 broker with users and access lists; ours takes all but the providers."""

REFUSALS = re.compile(
    r"username cannot be null\.|User:.* is not found\.|User:.* is disabled\."
    r"|check signature failed\.|parse authorization context error\."
    r"|\S+ has no permission to access \S+ from \S+, (?:no matched policies|the decision is deny)\."
    r"|org\.apache\.rocketmq\.acl\.common\.AclException: .*"
)
"""Remarks of RocketMQ's access checks. Other code may refuse with the same codes."""

Refusal = Mapping[str, Any] | None
Vector = Mapping[str, Any]


def refusal(answer: Answer) -> Refusal:
    """Return the answer if an access check refused the request, else None."""
    if answer.code and REFUSALS.fullmatch(answer.remark or ""):
        assert not answer.body, answer
        assert not answer.ext_fields, answer
        return {"code": answer.code, "remark": _without_frame(answer.remark)}
    return None


def _without_frame(remark: str | None) -> str | None:
    """Remove the line of the Java stack trace from a remark of 4.9."""
    return remark and re.sub(r", org\.apache\.rocketmq\.acl\.plain\.\S+\)$", "", remark)


class Asker(NamedTuple):
    """Sends requests to one broker, on one connection for each user."""

    address: str
    clients: dict[Any, SignedClient]
    stack: ExitStack
    tls: ssl.SSLContext | None = None

    def ask(
        self,
        request: Request,
        key: Key | None,
        codec: SerializeType = SerializeType.JSON,
        source: str | None = None,
    ) -> Answer:
        """Sign a request with this key, send it, and return the answer."""
        who = key, codec, source
        if who not in self.clients:
            client = SignedClient(self.address, serialize_type=codec, source=source, tls=self.tls)
            self.clients[who] = self.stack.enter_context(client)
        return self.clients[who].ask(request.code, request.ext_fields, request.body, key)


def as_vector(request: Request) -> dict[str, Any]:
    return {
        "name": request.name,
        "code": request.code,
        "ext": dict(request.ext_fields),
        "body": request.body.hex(),
    }


def as_request(vector: Vector) -> Request:
    return Request(vector["name"], vector["code"], vector["ext"], bytes.fromhex(vector["body"]))


# ---- users and lists of 5.5.0


def make_user(asker: Asker, name: str, policies: Mapping[str, Iterable[Entry]]) -> Key:
    """Create a user with these access lists."""
    body = as_json({"username": name, "password": SECRET})
    made = asker.ask(Request("user", 3001, {"username": name}, body), OPERATOR)
    assert not made.code, made
    for kind, entries in policies.items():
        listed = as_json({"policies": [policy(*entries, kind=kind)]})
        made = asker.ask(Request("list", 3006, {"subject": f"User:{name}"}, listed), OPERATOR)
        assert not made.code, made
    return Key(name, SECRET)


def single_rights(asker: Asker) -> dict[tuple[str, str | None], Key]:
    """Create users with all rights except one resource type, and users with one action on that
    type."""
    users = {}
    for kind in RESOURCES:
        others = [entry(f"{other}:*", "All") for other in RESOURCES if other != kind]
        for action in (None, *ACTIONS):
            own = [] if action is None else [entry(f"{kind}:*", action)]
            name = f"{kind}-{action or 'none'}"
            users[kind, action] = make_user(asker, name, {"CUSTOM": [*others, *own]})
    return users


def prepare_users(asker: Asker) -> None:
    """Create the objects of the requests, and users without rights."""
    for topic in TOPICS:
        assert not asker.ask(create_topic(topic), OPERATOR).code
    make_user(asker, "nothing", {})
    make_user(asker, "disabled", {})
    body = as_json({"userStatus": "disable"})
    assert not asker.ask(Request("user", 3002, {"username": "disabled"}, body), OPERATOR).code


def needs(
    request: Request, users: Mapping[tuple[str, str | None], Key], refused: Callable[..., Refusal]
) -> dict[str, list[str]]:
    """Return the actions that allow a request, by resource type; any one of them suffices."""
    return {
        kind: [action for action in ACTIONS if refused(request, users[kind, action]) is None]
        for kind in RESOURCES
        if refused(request, users[kind, None]) is not None
    }


def of_users(asker: Asker) -> Iterator[Vector]:
    """Return the answers to all requests of users with access lists."""
    prepare_users(asker)
    yield from administration(asker)
    users = single_rights(asker)

    def refused(request: Request, key: Key | None) -> Refusal:
        return refusal(asker.ask(request, key))

    for request in REQUESTS:
        refusals = {who: refused(request, key) for who, key in STRANGERS.items()}
        in_binary = {
            who: refusal(asker.ask(request, key, SerializeType.ROCKETMQ))
            for who, key in STRANGERS.items()
        }
        assert refusals == in_binary, request
        yield {
            "kind": "request",
            **as_vector(request),
            "refusals": refusals,
            "needs": needs(request, users, refused),
        }
    for number, tried in enumerate(LISTS):
        yield list_vector(asker, number, tried)
    for name, version, codec, request in signed_requests():
        with SignedClient(asker.address, version=version, serialize_type=codec) as client:
            answer = client.ask(request.code, request.ext_fields, request.body)
        vector = {**as_vector(request), "name": name, "version": version, "codec": codec.name}
        yield {"kind": "signature", **vector, "refusal": refusal(answer)}


def list_vector(asker: Asker, number: int, tried: TriedList) -> Vector:
    key = make_user(asker, f"listed-{number}", tried.policies)
    return {
        "kind": "list",
        "policies": tried.policies,
        **as_vector(tried.request),
        "name": tried.name,
        "refusal": refusal(asker.ask(tried.request, key)),
    }


def administration(asker: Asker) -> Iterator[Vector]:
    """Return the answers to the requests of `ADMINISTRATION`, with decoded JSON bodies."""
    manager = make_user(asker, "manager", {"CUSTOM": [entry("Cluster:*", "All")]})
    for kind, key, story in (
        ("administration", OPERATOR, ADMINISTRATION),
        ("administration", manager, BY_A_MANAGER),
        ("oddity", OPERATOR, ODDITIES),
    ):
        for request in story:
            answer = asker.ask(request, key)
            assert not answer.ext_fields, answer
            yield {
                "kind": kind,
                "by": key.name,
                **as_vector(request),
                "answer": {
                    "code": answer.code,
                    "remark": answer.remark,
                    "body": json.loads(answer.body) if answer.body else None,
                },
            }


def signed_requests() -> Iterator[tuple[str, int, SerializeType, Request]]:
    for name, version, request in _signed_in_json():
        yield name, version, SerializeType.JSON, request
    empty = _signed(Request("SEND_MESSAGE_V2", 310, {**SEND_V2, "i": ""}, b"x"))
    for codec in (SerializeType.JSON, SerializeType.ROCKETMQ):
        yield "an empty field", 409, codec, empty


def _signed(request: Request, excluded: tuple[str, ...] = (), **more: str) -> Request:
    fields = {**request.ext_fields, "AccessKey": OPERATOR.name, **more}
    signature = sign(fields, request.body, OPERATOR.secret, excluded=excluded)
    return request._replace(ext_fields={**fields, "Signature": signature})


def _signed_in_json() -> Iterator[tuple[str, int, Request]]:
    send = Request("SEND_MESSAGE_V2", 310, SEND_V2, b"x")
    unique = Request("QUERY_MESSAGE", 12, {**QUERY, UNIQUE_KEY: "true"})

    def changed(request: Request, **fields: str) -> Request:
        return request._replace(ext_fields={**request.ext_fields, **fields})

    yield "a signature", 409, _signed(send)
    yield "a token", 409, _signed(send, SecurityToken="token")
    yield "a token that is not signed", 409, changed(_signed(send), SecurityToken="token")
    yield "a field more", 409, changed(_signed(send), more="y")
    yield "an empty field more", 409, changed(_signed(send), more="")
    yield "a field changed", 409, changed(_signed(send), b="Other")
    yield "another body", 409, _signed(send)._replace(body=b"y")
    yield "an empty signature", 409, changed(_signed(send), Signature="")
    yield "no signature", 409, changed(send, AccessKey=OPERATOR.name)
    yield "an empty access key", 409, changed(_signed(send), AccessKey="")
    yield "another access key", 409, changed(_signed(send), AccessKey="nothing")
    yield "blanks around an access key", 409, changed(_signed(send), AccessKey=" operator ")
    for version in (399, 400, 409, 503):
        yield "a query by unique id", version, _signed(unique)
        yield "a query by unique id, its mark not signed", version, _signed(unique, (UNIQUE_KEY,))


# ---- plain_acl.yml of 4.9


def of_accounts(asker: Asker) -> Iterator[Vector]:
    """Return the answers to all requests of accounts of plain_acl.yml."""
    for topic in TOPICS:
        assert not asker.ask(create_topic(topic), OPERATOR).code
    for request in REQUESTS:
        refusals = {who: refusal(asker.ask(request, key)) for who, key in ACCOUNTS.items()}
        in_binary = {
            who: refusal(asker.ask(request, key, SerializeType.ROCKETMQ))
            for who, key in ACCOUNTS.items()
        }
        assert refusals == in_binary, request
        yield {"kind": "request", **as_vector(request), "refusals": refusals}
    for request, who in NAMES:
        answer = asker.ask(request, ACCOUNTS[who])
        yield {"kind": "name", "by": who, **as_vector(request), "refusal": refusal(answer)}
    for source, key, request in ADDRESSES:
        answer = asker.ask(request, key, source=source)
        yield {
            "kind": "address",
            "source": source,
            "key": key,
            **as_vector(request),
            "refusal": refusal(answer),
        }


# ---- both versions


ASKED = {"5.5.0": (WITH_USERS, of_users), "4.9.7": ({"aclEnable": "true"}, of_accounts)}


def answers(version: str, address: str) -> list[Vector]:
    """Return the answers of a broker with the settings of this version and its first user only."""
    with ExitStack() as stack:
        return list(ASKED[version][1](Asker(address, {}, stack)))


def of_a_real_broker(version: str, directory: Path) -> list[Vector]:
    """Start a RocketMQ broker and return its answers."""
    configuration = directory / NAME / "conf"
    configuration.mkdir(parents=True)
    (configuration / "plain_acl.yml").write_text(PLAIN_ACL, encoding="ascii")
    broker = RocketMQBroker(version, directory, FlushDiskType.ASYNC_FLUSH, ASKED[version][0])
    try:
        wait_until("a broker that answers", lambda: _answers(broker), START_SECONDS_MAX)
        return answers(version, broker.address)
    finally:
        broker.close()


def _answers(broker: RocketMQBroker) -> bool:
    try:
        with SignedClient(broker.address) as client:
            return client.ask(26, key=OPERATOR).code == 0
    except OSError:
        return False


def written(vectors: Iterable[Vector]) -> str:
    """Format vectors as the file stores them."""
    return "".join(json.dumps(each, sort_keys=True) + "\n" for each in vectors)


def load(version: str, kind: str) -> list[dict[str, Any]]:
    """Load the vectors of one kind and version."""
    lines = (DIRECTORY / f"{version}.jsonl").read_text(encoding="ascii").splitlines()
    return [each for each in map(json.loads, lines) if each["kind"] == kind]


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for version in sys.argv[1:] or ASKED:
        with tempfile.TemporaryDirectory() as directory:
            text = written(of_a_real_broker(version, Path(directory)))
        (DIRECTORY / f"{version}.jsonl").write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
