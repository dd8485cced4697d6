"""BodyOptions: how bodies are read or written, from the options whose names begin with ``body``.

Contradictory options are refused here, before any column is checked; `rmq_spark.spark.bodies`
derives the columns. The file of option ``bodyDescriptor`` is read on the driver, and its content
goes to tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmq_spark.client.errors import MessageRejected, RegistryFailed, SchemaNotFound
from rmq_spark.spark.errors import OptionError, SetUpError, no_effect_without
from rmq_spark.spark.options.table import OptionReader, of_option
from rmq_spark.spark.options.values import BodyFormat

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from rmq_spark.client.schema_registry import RegistryAccess
    from rmq_spark.spark.schemas.protobuf_schema import MessageSchema

BODY: Final = "body"
_MODULES: Final[Mapping[BodyFormat, str]] = {
    BodyFormat.AVRO: "fastavro",
    BodyFormat.PROTOBUF: "google.protobuf",
}
"""The module that a format needs; the last part of its name is the package that brings it."""


_REGISTERED_KINDS: Final[Mapping[BodyFormat, str]] = {
    BodyFormat.JSON: "JSON",
    BodyFormat.AVRO: "AVRO",
    BodyFormat.PROTOBUF: "PROTOBUF",
}
"""Formats whose schemas registries keep, and the registries' names for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyOptions:
    """The format of bodies, and the Spark columns that they become or are made from."""

    format: BodyFormat = BodyFormat.BINARY
    schema: StructType | None = None
    """The fields of a body, where options give them."""
    avro_schema: str | None = None
    """The JSON of the Avro schema, where option ``bodySchema`` is one."""
    message: MessageSchema | None = None
    """The type of the messages in bodies, with ``bodyFormat=protobuf``."""
    registry: RegistryAccess | None = None
    """The registry of schemas, where bodies have its header."""
    registry_retry_ms: int = of_option("retryTimeoutMs")
    """The time for which tasks wait for a registry that does not answer."""
    subject: str | None = None
    """The subject of the schema, where it comes from the registry."""
    schema_fault: str = ""
    """The reason that the subject's schema gives no columns, with ``bodyFormat=json``."""
    header: bytes = b""
    """The bytes that a sink writes before each body."""
    is_registered: bool = True
    """False if the sink has to register its schema first."""
    column: str | None = None
    """The one column that holds a body, as a struct or as text; None for a column per field."""

    @property
    def has_fields(self) -> bool:
        """True if a body is an object with fields."""
        return self.format not in (BodyFormat.BINARY, BodyFormat.TEXT)


BINARY_BODIES: Final = BodyOptions()
"""Bodies as they are: bytes in column body."""


def read_body(options: OptionReader, topic: str | None = None) -> BodyOptions:
    """Parse the body options of a source; ``topic`` is its topic, if it reads only one."""
    found = _body(options)
    kind, text = found.format, options.text("bodySchema")
    if text is None:
        return found if found.schema is not None else _with_latest_schema(found, options, topic)
    if kind in (BodyFormat.BINARY, BodyFormat.TEXT, BodyFormat.PROTOBUF):
        raise _wrong_format("bodySchema", "json, avro and msgpack", kind)
    from rmq_spark.spark.schemas.schema_text import parse_schema, schema_faults  # noqa: PLC0415  # brings pyspark

    avro_schema: str | None = None
    try:
        if kind is BodyFormat.AVRO and '"record"' in text:
            from rmq_spark.spark.schemas.avro_schema import check_avro_schema, spark_schema_of  # noqa: PLC0415  # brings pyarrow

            schema, avro_schema = spark_schema_of(text), text
            check_avro_schema(text)
        else:
            schema = parse_schema(text)
    except ValueError as error:
        raise OptionError("bodySchema", f"{error}: {text!r}") from None
    faults = schema_faults(schema)
    if kind is BodyFormat.AVRO and avro_schema is None:
        from rmq_spark.spark.schemas.avro_schema import avro_name_faults  # noqa: PLC0415  # brings pyarrow

        faults += avro_name_faults(schema)
    if kind is BodyFormat.AVRO and avro_schema is None and found.registry is not None:
        faults.append(
            "with bodyRegistry it must be an Avro schema. Give one, or remove this option"
        )
    if faults:
        raise OptionError("bodySchema", "; ".join(faults))
    return replace(found, schema=schema, avro_schema=avro_schema)


def write_body(options: OptionReader, topic: str | None = None) -> BodyOptions:
    """Parse the body options of a sink; ``topic`` is its topic, if it writes to only one."""
    found = _body(options)
    if options["bodyRegister"]:
        if found.registry is None:
            raise no_effect_without("bodyRegister", "bodyRegistry")
        if found.format is BodyFormat.PROTOBUF and found.message is None:
            raise OptionError(
                "bodyDescriptor",
                "bodyRegister needs the message to register. Give a file of descriptors and the "
                "message's name",
            )
        return replace(found, subject=_subject(options, topic), is_registered=False)
    latest = _with_latest_schema(found, options, topic)
    return replace(latest, schema=None) if latest.format is BodyFormat.JSON else latest


def _body(options: OptionReader) -> BodyOptions:
    """Parse the body options that source and sink share."""
    kind: BodyFormat = options["bodyFormat"]
    module, column = _MODULES.get(kind, "rmq_spark"), options.text("bodyColumn")
    try:
        import_module(module)
    except ImportError as error:
        raise SetUpError(
            f"bodyFormat={kind.value} needs the module {module}, on the driver and on the workers: "
            f"pip install {module.rpartition('.')[2]}"
        ) from error
    if column is not None and kind is BodyFormat.BINARY:
        raise OptionError(
            "bodyColumn",
            "it does not apply to bodyFormat binary. Set bodyFormat, or remove this option",
        )
    found = BodyOptions(
        format=kind,
        column=None if column is None else column.strip(),
        registry=_registry(options, kind),
        **options.fields(BodyOptions),
    )
    return _with_message(found, options)


def _wrong_format(option: str, formats: str, found: BodyFormat) -> OptionError:
    return OptionError(
        option,
        f"it applies to bodyFormat {formats} only, found {found.value}. Set bodyFormat, or remove "
        "this option",
    )


# ---- Protobuf


def _with_message(body: BodyOptions, options: OptionReader) -> BodyOptions:
    path, name = options.text("bodyDescriptor"), options.text("bodyMessage")
    if body.format is not BodyFormat.PROTOBUF:
        for option, text in (("bodyDescriptor", path), ("bodyMessage", name)):
            if text is not None:
                raise _wrong_format(option, "protobuf", body.format)
        return body
    if path is None and body.registry is not None:
        return body
    if path is None:
        raise OptionError(
            "bodyDescriptor",
            "bodyFormat=protobuf needs the descriptors of the bodies. Make a file with protoc "
            "--include_imports --descriptor_set_out=FILE, and give its path",
        )
    from rmq_spark.spark.schemas import protobuf_schema  # noqa: PLC0415  # brings pyarrow

    try:
        files = Path(path.strip()).read_bytes()
        protobuf_schema.check_files(files)
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise OptionError(
            "bodyDescriptor",
            f"{path} cannot be used: {cause}. Give a file on the driver that protoc "
            "--include_imports --descriptor_set_out=FILE has made",
        ) from None
    try:
        message = protobuf_schema.find_message(files, name and name.strip())
        return replace(body, message=message, schema=protobuf_schema.protobuf_columns(message))
    except ValueError as error:
        raise OptionError("bodyMessage", str(error)) from None


# ---- the registry of schemas

_OF_REGISTRY: Final = (
    *("bodyRegistryUser", "bodyRegistryPassword", "bodyRegistryCaFile", "bodySubject"),
)


def _registry(options: OptionReader, kind: BodyFormat) -> RegistryAccess | None:
    url = options.text("bodyRegistry")
    if url is None:
        for name in _OF_REGISTRY:
            if options.text(name) is not None:
                raise no_effect_without(name, "bodyRegistry")
        return None
    if kind not in _REGISTERED_KINDS:
        raise _wrong_format("bodyRegistry", "json, avro and protobuf", kind)
    user, password = options.text("bodyRegistryUser"), options.text("bodyRegistryPassword")
    if (user is None) != (password is None):
        given, missing = ("User", "Password") if user else ("Password", "User")
        raise OptionError(
            f"bodyRegistry{missing}", f"it is required together with bodyRegistry{given}"
        )
    import ssl  # noqa: PLC0415  # few queries need it

    from rmq_spark.client.schema_registry import RegistryAccess  # noqa: PLC0415  # brings http and email

    path = options.text("bodyRegistryCaFile")
    try:
        ca = None if path is None else Path(path.strip()).read_text(encoding="ascii")
        ssl.create_default_context(cadata=ca)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise OptionError(
            "bodyRegistryCaFile",
            f"{path} cannot be used: {cause}. Give a PEM file with certificates on the driver",
        ) from None
    try:
        return RegistryAccess(
            url=url.strip(),
            user=user,
            password=password,
            ca=ca,
            timeout_ms=options["requestTimeoutMs"],
        )
    except MessageRejected as error:
        raise OptionError("bodyRegistry", f"needed {error.needed}, found {error.found!r}") from None


def _subject(options: OptionReader, topic: str | None) -> str:
    subject = options.text("bodySubject")
    if subject is None and topic is None:
        raise OptionError(
            "bodySubject",
            "it is required, because there is no single topic. Give the subject of the registry "
            "that has the schema, for example orders-value",
        )
    return f"{topic}-value" if subject is None else subject.strip()


def _with_latest_schema(body: BodyOptions, options: OptionReader, topic: str | None) -> BodyOptions:
    if body.registry is None:
        return body
    from rmq_spark.spark.schemas import protobuf_schema, registered_schema  # noqa: PLC0415  # bring pyspark

    subject = _subject(options, topic)
    name = options.text("bodyMessage")
    try:
        latest = body.registry.connect().latest(subject)
    except SchemaNotFound as error:
        raise OptionError(
            "bodySubject",
            f"{error} {subject!r}. Register a schema there, give another subject, or set "
            "bodyRegister for a sink",
        ) from None
    except RegistryFailed as error:
        raise OptionError("bodyRegistry", f"{error}. Check the address and that it runs") from None
    needed = _REGISTERED_KINDS[body.format]
    if latest.kind != needed:
        raise OptionError(
            "bodyFormat",
            f"the schema of subject {subject!r} is of {latest.kind}, not {needed}. Set bodyFormat "
            "to its format, or give another subject",
        )
    found = replace(body, subject=subject, header=latest.header)
    try:
        if body.format is BodyFormat.AVRO:
            schema, text = registered_schema.columns_of_avro(latest)
            return replace(found, schema=schema, avro_schema=text)
        if body.format is BodyFormat.JSON:
            try:
                return replace(found, schema=registered_schema.json_columns(latest.text))
            except ValueError as error:  # its columns can be given with .schema(...)
                return replace(found, schema_fault=str(error))
        message = registered_schema.message_of_registered(latest, name and name.strip())
        return replace(
            found,
            message=message,
            schema=protobuf_schema.protobuf_columns(message),
            header=latest.header + registered_schema.index_bytes(message),
        )
    except ValueError as error:
        option = "bodySubject" if name is None else "bodyMessage"
        raise OptionError(
            option, f"the schema of subject {subject!r} cannot be used: {error}"
        ) from None
