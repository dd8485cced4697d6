"""SchemaRegistry: asks a registry of schemas that speaks Confluent's REST interface.

    0 | id, 4 bytes | body          what serializers of registries put before a body

Schemas of an id never change, so that each is fetched once. Nothing is retried here. Credentials
are sent to the registry alone, also if it redirects, and are in no error.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPSHandler, Request, build_opener

from rmq_spark.client.arguments import explain_all_keywords
from rmq_spark.client.errors import MessageRejected, RegistryAway, RegistryFailed, SchemaNotFound
from rmq_spark.errors import excerpt, sanitize

HEADER_BYTES: Final = 5
_RESPONSE_BYTES_MAX: Final = 16 << 20
_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_SERVER_ERRORS: Final = (408, 429, *range(500, 600))
_NOT_FOUND: Final = 404
_DENIED: Final = (401, 403)


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of a registry.

    Attributes:
        schema_id: Its id, which bodies name.
        kind: ``AVRO``, ``JSON`` or ``PROTOBUF``.
        text: The schema; for Protobuf, a file descriptor in base64.
        references: The schemas that it needs, by the names under which it needs them.
    """

    schema_id: int
    kind: str
    text: str
    references: tuple[tuple[str, RegisteredSchema], ...] = ()

    @property
    def header(self) -> bytes:
        """The bytes before each body of this schema."""
        return b"\0" + self.schema_id.to_bytes(4, "big")

    def avro(self) -> Any:
        """Return an Avro schema with its references inlined; raise ValueError if it is invalid."""
        try:
            named = {name: each.avro() for name, each in self.references}
            return _with_definitions(json.loads(self.text), named)
        except RecursionError:
            raise ValueError("it is nested too deep") from None


def _with_definitions(schema: Any, named: dict[str, Any]) -> Any:
    """Replace the first use of each name by its definition."""
    if isinstance(schema, str):
        return named.pop(schema, schema)
    if isinstance(schema, list):
        return [_with_definitions(each, named) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = ("type", "items", "values", "fields")
    return {
        key: _with_definitions(each, named) if key in inner else each
        for key, each in schema.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAccess:
    """The address of a registry and the credentials for it; pickled to Spark's tasks.

    Attributes:
        url: Its address, as ``https://registry.example``; several are separated by commas.
        user: The user of its basic authentication.
        password: The user's password.
        ca: Trusted certificate authorities in PEM, by default the system's.
        timeout_ms: The timeout of a request.
    """

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = field(default=None, repr=False)
    timeout_ms: int = 3_000

    def __post_init__(self) -> None:
        for url in self.urls:
            parts = urlsplit(url)
            if "@" in parts.netloc:
                needed = "an address without user and password, which are separate settings"
                raise MessageRejected("url", needed, f"one with both at {parts.hostname}")
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
                raise MessageRejected("url", "http://HOST:PORT or https://HOST:PORT", url)
        if (self.user is None) != (self.password is None):
            raise MessageRejected("password", "user and password together", "one of them")

    def connect(self) -> SchemaRegistry:
        """Return a client of the registry."""
        return SchemaRegistry(
            self.url, user=self.user, password=self.password, ca=self.ca, timeout_ms=self.timeout_ms
        )

    @property
    def urls(self) -> Sequence[str]:
        """The addresses, of which the first that answers is used."""
        return [each.strip().rstrip("/") for each in self.url.split(",")]


@explain_all_keywords
class SchemaRegistry:
    """A client of a registry of schemas, with the schemas that it has fetched.

    Example:
        registry = SchemaRegistry("http://localhost:8081")
        orders = registry.latest("orders-value")
        serializer = avro(orders.avro(), header=orders.header, schema_of=registry.schema_of)
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        ca: str | None = None,
        timeout_ms: int = 3_000,
    ) -> None:
        """Make a client of a registry; nothing is sent yet.

        Args:
            url: Its address, as ``https://registry.example``; several are separated by commas.
            user: The user of its basic authentication.
            password: The user's password.
            ca: Trusted certificate authorities in PEM, by default the system's.
            timeout_ms: The timeout of a request.

        Raises:
            MessageRejected: The address is not valid, or only one of user and password is given.
        """
        access = RegistryAccess(url=url, user=user, password=password, ca=ca, timeout_ms=timeout_ms)
        self._access = access
        context = ssl.create_default_context(cadata=access.ca)
        self._opener = build_opener(HTTPSHandler(context=context))
        self._schemas: dict[int, RegisteredSchema] = {}

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of an id.

        Args:
            schema_id: The id, as bodies name it.

        Raises:
            SchemaNotFound: The registry has no such schema.
            RegistryFailed: It does not answer, or refuses.
        """
        found = self._schemas.get(schema_id)
        if found is None:
            found = self._registered(self._ask(f"/schemas/ids/{schema_id}", schema_id), schema_id)
            self._schemas[schema_id] = found
        return found

    def schema_of(self, header: bytes) -> Any:
        """Return the Avro schema that a header names, for `avro`; raises what `schema` raises."""
        return self.schema(int.from_bytes(header[1:HEADER_BYTES], "big")).avro()

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the newest schema of a subject; raises what `schema` raises."""
        response = self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest")
        schema_id = response.get("id")
        if not isinstance(schema_id, int):
            raise RegistryFailed(self._access.url, f"its answer has no id: {excerpt(response)}")
        return self.schema(schema_id)

    def register(self, subject: str, kind: str, text: str) -> RegisteredSchema:
        """Register a schema, if it is not there; raises what `schema` raises.

        Args:
            subject: The subject, such as ``orders-value``.
            kind: ``AVRO``, ``JSON`` or ``PROTOBUF``.
            text: The schema; for Protobuf, a file descriptor in base64.
        """
        body = {"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}
        path = f"/subjects/{quote(subject, safe='')}/versions"
        schema_id = self._ask(path, body=json.dumps(body).encode()).get("id")
        if not isinstance(schema_id, int):
            raise RegistryFailed(self._access.url, "its answer to a new schema has no id")
        return RegisteredSchema(schema_id, kind, text)

    def _registered(self, response: Mapping[str, Any], schema_id: int) -> RegisteredSchema:
        kind, text = response.get("schemaType", "AVRO"), response.get("schema")
        if not isinstance(text, str):
            raise RegistryFailed(self._access.url, f"its answer has no schema: {excerpt(response)}")
        if kind == "PROTOBUF":
            path = f"/schemas/ids/{schema_id}?format=serialized"
            text = self._ask(path, schema_id).get("schema", "")
        references = []
        for each in response.get("references") or ():
            subject, version = quote(str(each["subject"]), safe=""), each["version"]
            needed = self._ask(f"/subjects/{subject}/versions/{version}", each["subject"])
            references.append((str(each["name"]), self.schema(int(needed["id"]))))
        return RegisteredSchema(schema_id, kind, text, tuple(references))

    def _ask(self, path: str, what: object = None, body: bytes | None = None) -> dict[str, Any]:
        """Return the response of the first address that gives one."""
        *others, last = self._access.urls
        for url in others:
            with suppress(RegistryAway):
                return self._ask_one(url, path, what, body)
        return self._ask_one(last, path, what, body)

    def _ask_one(self, url: str, path: str, what: object, body: bytes | None) -> dict[str, Any]:
        request = Request(url + path, data=body, headers={"Accept": _CONTENT_TYPE})  # noqa: S310  # http and https alone
        request.add_header("Content-Type", _CONTENT_TYPE)
        if self._access.user is not None:
            pair = f"{self._access.user}:{self._access.password}".encode()
            request.add_unredirected_header(
                "Authorization", f"Basic {base64.b64encode(pair).decode()}"
            )
        try:
            with self._opener.open(request, timeout=self._access.timeout_ms / 1000) as response:
                found = json.loads(response.read(_RESPONSE_BYTES_MAX))
        except HTTPError as error:
            raise self._refusal(url, error, what) from None
        except (URLError, OSError, HTTPException) as error:
            why = sanitize(str(getattr(error, "reason", error)) or type(error).__name__)
            raise RegistryAway(url, f"no answer: {why}") from None
        except (ValueError, RecursionError) as error:
            raise RegistryFailed(url, f"its answer is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise RegistryFailed(url, f"its answer is not an object: {excerpt(found)}")
        return found

    def _refusal(self, url: str, error: HTTPError, what: object) -> RegistryFailed:
        status, remark = error.code, error.read(1_000).decode(errors="replace")
        if status == _NOT_FOUND:
            return SchemaNotFound(url, f"it has no {what if what is not None else 'such subject'}")
        if status in _DENIED:
            needed = (
                "user and password" if self._access.user is None else "another user or password"
            )
            return RegistryFailed(url, f"it demands {needed} (status {status})")
        why = f"status {status}: {excerpt(remark)}"
        return (RegistryAway if status in _SERVER_ERRORS else RegistryFailed)(url, why)
