"""Connection: the options, variables and profiles by which a command reaches a cluster.

    --namesrv and the like  >  --profile NAME  >  environment  >  the current profile
                                                               >  127.0.0.1:9876

A named profile precedes the environment, because the user chose it on purpose. The current profile
(``rocketpoll profile use``) is used as a whole or not at all: its keys must not be sent to another
cluster, whose address an option or the environment gives.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rmq_spark.cli.shell.command_tree import ConnectionOption, option_set
from rmq_spark.cli.shell.failures import Failure, describe_error
from rmq_spark.client.arguments import explain_missing_topic
from rmq_spark.client.errors import (
    BrokerNotFound,
    ConnectionFailed,
    ProfileRejected,
    RouteNotFound,
    TlsRejected,
    TopicNotFound,
    TopicNotUsable,
)
from rmq_spark.client.profiles import (
    CREDENTIAL_VARIABLES,
    FILES,
    FLAGS,
    PROFILE_KEYS,
    PROFILES_VARIABLE,
    SECRETS,
    current_profile_name,
    read_profile,
)
from rmq_spark.errors import RocketPollError, excerpt
from rmq_spark.wire.compression import PLAIN_BYTES_LIMIT_MAX
from rmq_spark.wire.names import is_namespace

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.instance.instance import ClientInstance
    from rmq_spark.client.transport.tls.settings import TlsSettings

DEFAULT_ADDRESS: Final = "127.0.0.1:9876"
_VARIABLES: Final = {
    "namesrv": "NAMESRV_ADDR",
    "namespace": "ROCKETPOLL_NAMESPACE",
    **CREDENTIAL_VARIABLES,
}
_Function = TypeVar("_Function", bound=Callable[..., Any])

_BODY_BYTES: Final = click.IntRange(1, PLAIN_BYTES_LIMIT_MAX)
_option: Final = functools.partial(click.option, cls=ConnectionOption)

_OPTIONS: Final = (
    _option("--namesrv", metavar="HOST:PORT", help="Name servers, separated by semicolons. "
                 f"[default: $NAMESRV_ADDR, else {DEFAULT_ADDRESS}]"),
    _option("--access-key", metavar="NAME", help="Account at brokers with access lists. "
                 "[default: $ROCKETPOLL_ACCESS_KEY]"),
    _option("--secret-key", metavar="KEY", help="Key of the account. Other users can see command "
                 "lines: prefer the variable or a profile. [default: $ROCKETPOLL_SECRET_KEY]"),
    _option("--tls/--no-tls", default=None, help="Use TLS with name servers and brokers. "
                 "[default: on if another TLS option is given]"),
    _option("--tls-ca-file", metavar="FILE", help="PEM file with the authorities to trust. "
                 "[default: those of the system]"),
    _option("--tls-cert-file", metavar="FILE", help="PEM file with this client's certificate."),
    _option("--tls-key-file", metavar="FILE", help="PEM file with its private key. "
                 "[default: --tls-cert-file]"),
    _option("--tls-verify/--no-tls-verify", default=None,
                 help="Verify the brokers' certificates. [default: on]"),
    _option("--tls-server-name", metavar="NAME",
                 help="Name in the brokers' certificates. [default: the host of the address]"),
    _option("--max-body-bytes", type=_BODY_BYTES, metavar="N",
                 help="Size up to which a compressed body is inflated. [default: 16777216]"),
    _option("--namespace", metavar="NAME", help="Namespace of the names of topics and groups: "
                 "orders is eu%orders for brokers. [default: $ROCKETPOLL_NAMESPACE]"),
    _option("--profile", metavar="NAME", help="Named settings, see rocketpoll "
                 "profile. [default: that of profile use]"),
)  # fmt: skip

_CREDENTIALS: Final = SECRETS | {"access-key"}
_COMMAND_MENTION: Final = re.compile(
    r"\brocketpoll ((?:acl|cluster|dlq|group|sink|sql|topic|user) [a-z]+"
    r"|(?:bench|console|consume|exporter|lake|message|produce|recall|request|tail|top)\b)"
    r"((?: --[a-z-]+)*)(?: ([^\s,;:]*[^\s,;:.])(?=\.?$))?"
)
"""Matches a mention of a command that acts on a cluster, within a sentence: the words that name it,
its flags, and at the end of the sentence its argument."""
_COMMAND_END: Final = re.compile(r"[.,;:)]|$| to ")
"""Matches the text after a mention of a command that has all its arguments."""


@dataclass(frozen=True)
class ClusterAccess:
    """The connection settings for a cluster.

    Attributes:
        settings: The values from options, environment and profile, by the names of the options.
        options: The options by which another command reaches this cluster, without credentials.
        profiles_file: The file of profiles, if a variable names it and a profile is used.
        needs_credentials: Whether commands need credentials that neither these options nor the
            profile have.
        typed_options: The part of ``options`` that the user typed, which a command in the same
            shell needs as well.
    """

    settings: Mapping[str, Any] = field(repr=False)  # secrets are among them
    options: tuple[str, ...] = ()
    profiles_file: str | None = None
    needs_credentials: bool = False
    typed_options: tuple[str, ...] = ()

    @property
    def name_servers(self) -> str:
        """Addresses of the name servers, as ``host:port;host:port``."""
        return str(self.settings.get("namesrv") or DEFAULT_ADDRESS)

    def command(self, verb: str, *arguments: str, options: Sequence[str] = ()) -> str:
        """Return a command line, quoted for a shell, that acts on this cluster wherever it is run.

        ``verb`` has the words that name the command, such as ``group seek``.
        """
        words = ["rocketpoll", *verb.split()]
        if any(each.startswith("-") for each in arguments):  # a name, not an option
            words += [*options, *self.options, "--", *arguments]
        else:
            words += [*arguments, *options, *self.options]
        line = shlex.join(words)
        if self.profiles_file is None:
            return line
        return f"{PROFILES_VARIABLE}={shlex.quote(self.profiles_file)} {line}"

    def next_command(self, verb: str, *arguments: str, options: Sequence[str] = ()) -> str:
        """Return what `command` returns, but for the shell in which the user typed this command."""
        access = replace(self, options=self.typed_options, profiles_file=None)
        return access.command(verb, *arguments, options=options)

    def split_commands(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the parts of a sentence, and whether each is a whole command.

        All commands have this cluster's options.
        """
        at = 0
        for found in _COMMAND_MENTION.finditer(text):
            yield text[at : found.start()], False
            verb, flags, argument = found.groups()
            arguments = [argument] if argument else []
            at = found.end()
            line = self.command(verb, *arguments, options=flags.split())
            yield line, _COMMAND_END.match(text, at) is not None
        yield text[at:], False

    def instance(self) -> ClientInstance:
        """Return a client for this cluster, not started yet."""
        from rmq_spark.client.instance.instance import ClientInstance  # noqa: PLC0415  # --help needs no client
        from rmq_spark.client.transport.remoting_client import Credentials  # noqa: PLC0415  # --help does not need it

        given = self.settings
        for address in filter(None, re.split(r"[;,\s]+", self.name_servers)):
            _check_address(address)
        credentials = None
        if "access-key" in given or "secret-key" in given:
            for name in ("access-key", "secret-key"):
                if name not in given:
                    raise click.UsageError(
                        f"--{name} is missing. Give --access-key and --secret-key together"
                    )
            credentials = Credentials(given["access-key"], given["secret-key"])
        try:
            tls = self._tls()
        except TlsRejected as error:
            option = f"--tls-{error.setting.replace('_', '-')}"
            raise click.UsageError(f"{option}: {error.problem}") from error
        limits = {"max_body_bytes": given["max-body-bytes"]} if "max-body-bytes" in given else {}
        return ClientInstance(
            self.name_servers,
            credentials=credentials,
            tls=tls,
            request_timeout_ms=5_000,
            namespace=given.get("namespace"),
            **limits,
        )

    def _tls(self) -> TlsSettings | None:
        given = {
            name.removeprefix("tls-"): value
            for name, value in self.settings.items()
            if name.startswith("tls-")
        }
        password = given.pop("key-password", None)
        is_wanted = self.settings.get("tls")
        if is_wanted is None:
            is_wanted = bool(given)  # certificates have no effect without TLS
        if not is_wanted:
            return None
        from rmq_spark.client.transport.tls.settings import TlsSettings  # noqa: PLC0415  # seldom used

        return TlsSettings.of_files(
            ca_file=given.get("ca-file"),
            cert_file=given.get("cert-file"),
            key_file=given.get("key-file"),
            key_password=password if "cert-file" in given else None,  # else for another key
            verify=given.get("verify", True),
            server_name=given.get("server-name"),
        )

    @contextmanager
    def admin(self) -> Iterator[Admin]:
        """Yield an `Admin` of the cluster; an error for an unknown topic suggests the nearest."""
        from rmq_spark.client.admin.admin import Admin  # noqa: PLC0415  # --help does not need it

        with Admin(instance=self.instance()) as admin, explain_missing_topics(admin):
            yield admin


def _check_address(address: str) -> None:
    from rmq_spark.client.transport.connection import parse_address  # noqa: PLC0415  # --help does not need it

    _, scheme, rest = address.partition("://")
    if scheme:
        host = rest.partition("/")[0]
        right = host if ":" in host else f"{host}:9876"
        raise click.UsageError(f"--namesrv {address}: an address has no scheme. Write {right}")
    try:
        parse_address(address)
    except ConnectionFailed as error:
        raise click.UsageError(
            f"--namesrv {address}: not an address. Write HOST:PORT, for example localhost:9876"
        ) from error


@contextmanager
def explain_missing_topics(admin: Admin) -> Iterator[None]:
    """Add the closest existing name to the error for an unknown topic.

    Name servers drop the topics of brokers that are away: if there is no broker, the topic may
    exist nevertheless, and the error must not advise to create it.
    """
    try:
        yield
    except TopicNotUsable:
        raise
    except RouteNotFound as error:
        topic = admin.instance.namespace.strip(error.topic)
        try:
            admin.masters()
            hint = explain_missing_topic(topic, admin.topics())
        except BrokerNotFound as no_broker:
            raise no_broker from error
        except RocketPollError:  # the first error is more useful
            hint = None
        what = ""
        if hint is not None:
            what = f"{hint[0].upper()}{hint[1:]} " if hint.endswith("?") else f"{hint}. "
        raise Failure(
            f"there is no topic {error.topic}",
            f"{what}List all with rocketpoll topic list, or create it with "
            f"rocketpoll topic create {topic}",
        ) from error
    except TopicNotFound as error:
        raise Failure(
            describe_error(error), "Run rocketpoll topic describe to see which brokers have it"
        ) from error


def connection_options(function: _Function) -> _Function:
    """Add the connection options to a command, which gets them as its argument ``access``."""
    return _with_access(function, lambda access, _: access)


def cluster_options(function: _Function) -> _Function:
    """Add the connection options to a command that shows or changes a whole cluster.

    The command uses full names, and ignores the namespace of a profile or variable.
    """

    def of_cluster(access: ClusterAccess, option: str | None) -> ClusterAccess:
        if option is not None:
            raise click.UsageError(
                f"{_command_path()} acts on all namespaces, by full names. Leave out --namespace"
            )
        settings = {name: each for name, each in access.settings.items() if name != "namespace"}
        return replace(access, settings=settings)

    return _with_access(function, of_cluster)


def full_name_options(function: _Function) -> _Function:
    """Add the connection options to a command that takes full names, and refuses a namespace."""

    def without_namespace(access: ClusterAccess, option: str | None) -> ClusterAccess:
        namespace = access.settings.get("namespace")
        if namespace is None:
            return access
        fix = (
            f"Unset {_VARIABLES['namespace']}, or use a profile without a namespace"
            if option is None
            else "Leave out --namespace"
        )
        raise click.UsageError(
            f"{_command_path()} takes full names, such as {namespace}%orders, and no namespace. "
            f"{fix}"
        )

    return _with_access(function, without_namespace)


def _command_path() -> str:
    return click.get_current_context().command_path


def _with_access(
    function: _Function, adapt: Callable[[ClusterAccess, str | None], ClusterAccess]
) -> _Function:
    """Add the connection options; ``adapt`` changes the access, given the text of --namespace."""

    @functools.wraps(function)
    def run(*arguments: Any, **given: Any) -> Any:
        names = [*(name.replace("-", "_") for name in PROFILE_KEYS), "profile"]
        options = {name: given.pop(name, None) for name in names}
        access = adapt(access_of(options), options["namespace"])
        return function(*arguments, access=access, **given)

    return option_set(*_OPTIONS)(run)  # type: ignore[return-value]  # called as the function was


def connection_parameters() -> list[click.Option]:
    """Return the options for the connection, in the order in which help lists them."""

    @connection_options
    def nothing(*, access: ClusterAccess) -> None:
        """Take the options."""

    found: list[click.Option] = nothing.__click_params__  # type: ignore[attr-defined]  # click's
    return found[::-1]


def access_of(params: Mapping[str, Any]) -> ClusterAccess:
    """Return the access to the cluster that the parameters of a command name."""
    options = {name: params.get(name.replace("-", "_")) for name in PROFILE_KEYS}
    return _resolve_access(options, params.get("profile"))


def profile_options(function: _Function) -> _Function:
    """Add the options for the settings of a profile, which a command gets as ``settings``."""

    @functools.wraps(function)
    def run(*arguments: Any, **given: Any) -> Any:
        settings = {name: given.pop(name.replace("-", "_"), None) for name in PROFILE_KEYS}
        if settings["namesrv"] is not None:
            for address in filter(None, re.split(r"[;,\s]+", settings["namesrv"])):
                _check_address(address)
        found = {name: value for name, value in settings.items() if value is not None}
        return function(*arguments, settings=found, **given)

    return option_set(*_OPTIONS[:-1])(run)  # type: ignore[return-value]  # called as it was


def other_cluster(access: ClusterAccess, namesrv: str | None, profile: str | None) -> ClusterAccess:
    """Return the access to a second cluster, given by a profile or by name servers.

    Without a profile, the keys and certificates are those of the first cluster.
    """
    if profile is not None:
        given = {**dict.fromkeys(PROFILE_KEYS), "namesrv": namesrv}
        return _resolve_access(given, profile)
    if namesrv is None:
        return access
    if not namesrv:
        raise click.UsageError("--to-namesrv is empty. Give HOST:PORT, or leave the option out")
    return replace(
        access,
        settings={**access.settings, "namesrv": namesrv},
        options=("--namesrv", namesrv),
    )


def _resolve_access(options: Mapping[str, Any], profile: str | None) -> ClusterAccess:
    of_environment = {
        name: os.environ[variable]
        for name, variable in _VARIABLES.items()
        if os.environ.get(variable)
    }
    if options["namesrv"] == "":  # an unset variable in a script must not lead to this machine
        raise click.UsageError("--namesrv is empty. Give HOST:PORT, or leave the option out")
    namespace = options["namespace"]
    if namespace is not None and not is_namespace(namespace):
        raise click.UsageError(
            f"--namespace {excerpt(namespace)} is not a valid namespace. Give letters, digits and "
            "_ - |, or leave the option out"
        )
    is_chosen = profile is not None
    if not is_chosen and not options["namesrv"] and "namesrv" not in of_environment:
        profile = current_profile_name()
    of_profile = {} if profile is None else _profile_settings(profile, is_chosen=is_chosen)
    given = {name: value for name, value in options.items() if value is not None}
    settings = {**of_environment, **of_profile, **given}
    shown = [] if profile is None else ["--profile", profile]
    for name in PROFILE_KEYS:
        is_implied = profile is not None and name in of_profile and name not in given
        if is_implied or name in _CREDENTIALS:
            continue
        if name == "namesrv":
            shown += ["--namesrv", settings.get(name) or DEFAULT_ADDRESS]
        elif name == "namespace" and name in settings:
            shown += ["--namespace", settings[name]]
        elif name in FLAGS and name in given:
            shown.append(f"--{name}" if given[name] else f"--no-{name}")
        elif name in given:
            shown += [f"--{name}", os.path.abspath(given[name]) if name in FILES else given[name]]  # noqa: PTH100  # as text
    file = os.environ.get(PROFILES_VARIABLE) if profile is not None else None
    typed = shown if profile is not None or "namesrv" in given else shown[2:]
    return ClusterAccess(
        settings,
        tuple(shown),
        None if not file else os.path.abspath(file),  # noqa: PTH100  # the field is a str
        any(settings[name] != of_profile.get(name) for name in _CREDENTIALS & settings.keys()),
        tuple(typed),
    )


def _profile_settings(name: str, *, is_chosen: bool) -> Mapping[str, Any]:
    try:
        profile = read_profile(name)
    except ProfileRejected as error:
        if is_chosen:
            raise click.UsageError(f"--profile {name}: {error.problem}") from error
        raise Failure(
            f"the current profile {name}: {error.problem}",
            "Choose another with rocketpoll profile use PROFILE, or none with --none",
        ) from error
    if profile.warning is not None:
        click.echo(f"rocketpoll: {profile.warning}", err=True)
    return profile.settings
