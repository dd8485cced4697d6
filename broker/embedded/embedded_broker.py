"""EmbeddedBroker: runs a broker for a test, notebook or program; start, stop, and forks.

    with EmbeddedBroker() as broker:
        broker.create_topic("orders")
        broker.send("orders", "one", "two")
        assert [message.body for message in broker.messages("orders")] == [b"one", b"two"]

The broker runs in a thread, or in a process of its own, which ends with this process even if that
is killed. Its directory is temporary and removed at the end, or a given one that stays. The process
that starts a broker owns it: a fork of that process can use its address and its helpers, but cannot
stop it or remove its directory.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import FunctionType, NoneType
from typing import Any, Final, NoReturn

from rmq_spark.cli.cluster.broker_launcher import broker_command
from rmq_spark.client.transport.tls.settings import TlsSettings
from rmq_spark.errors import RocketPollError, excerpt

from ..controller import BrokerController
from ..server.descriptors import embedded_open_files_max
from ..server.server import CannotListen
from ..settings.config import BrokerConfig
from ..settings.settings import KEYS, config_of
from .broker_process import BrokerProcess
from .broker_thread import BrokerThread
from .errors import EmbeddedBrokerError, type_error
from .faults.clock import BrokerClock
from .faults.faults import BrokerFaults, BrokerOperation
from .helpers import BrokerHelpers, NotInTime
from .throwaway_authority import MADE_SETTINGS, EmbeddedTls, default_settings

_log = logging.getLogger(__name__)

_OPERATION_TIMEOUT_SECONDS: Final = 60.0
_SETTINGS_OF_ARGUMENTS: Final = {"listenPort": "port", "storePathRootDir": "directory"}
_TEMPORARY_STORE_DEFAULTS: Final = {
    "flushDiskType": "ASYNC_FLUSH",
    # The store is small and short-lived: a disk that is 95 % full has room for it.
    "diskMaxUsedSpaceRatio": "99",
    "diskSpaceCleanForciblyRatio": "99",
    "diskSpaceWarningLevelRatio": "99",
}
"""Defaults for a broker with a temporary directory."""
_ADDRESS: Final = re.compile(r"[\w.-]*:[0-9]{1,5}|\[[0-9a-fA-F:.]+\]:[0-9]{1,5}")
_REACHABLE_ADDRESSES: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # nothing is bound here


class _Lifecycle(Enum):
    NEW = "does not run yet: start it, or use it in a with statement"
    STARTED = "did not start again after a restart: restart it again, or stop it"
    ENDED = "was stopped: create another one"


_ARGUMENTS: Final = ("directory", "port", "own_process", "tls")


class EmbeddedBroker(BrokerFaults, BrokerHelpers):
    """A RocketMQ broker and name server for a test, a notebook or a program.

    Example:
        with EmbeddedBroker() as broker:
            broker.create_topic("orders")
            broker.send("orders", "one", "two")
            assert [message.body for message in broker.messages("orders")] == [b"one", b"two"]

    The broker runs in a thread, or in a process of its own, which ends with this process even if
    that is killed. It can be started once and stopped once, and restarted in between. The process
    that starts a broker owns it: a fork of that process can use its address and its helpers, but
    cannot stop, restart, pause or kill it.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        port: int = 0,
        own_process: bool = False,
        tls: bool | TlsSettings = False,
        **settings: object,
    ) -> None:
        """Check the settings of a broker; `start` or a with statement runs it.

        Args:
            directory: The directory of the store, which is kept. None uses a temporary directory,
                which is removed when the broker stops.
            port: The port to listen on; 0 picks any free one.
            own_process: Whether the broker runs in a process of its own rather than in a thread.
            tls: True makes a certificate with a throw-away authority, which the property ``tls``
                trusts; the broker then accepts only clients with TLS. If the broker has a
                certificate of yours (tls.server.certPath), pass the settings of its clients.
            **settings: Settings under their names in conf/broker.conf, such as ``maxTopics=20``. By
                default, vipChannelEnable is false. With a temporary directory, flushDiskType is
                ASYNC_FLUSH, and the broker takes messages until the disk is 99 % full
                (diskSpaceWarningLevelRatio) instead of 90 %.

        Raises:
            ConfigError: A setting is unknown, or its value is wrong.
            EmbeddedBrokerError: listenPort or storePathRootDir is given as a setting; or
                ``directory`` is not a valid path, or looks like an address; or a certificate
                is given although ``tls=True`` makes one.
            TypeError: The directory is not a path, the port not a number, own_process not a bool,
                or tls neither a bool nor `TlsSettings`.
        """
        super().__init__()
        if not isinstance(directory, (str, Path, NoneType)):
            example = "EmbeddedBroker('some/directory'), or EmbeddedBroker(port=9876)"
            raise type_error("directory", "a path", directory, example)
        if directory is not None and "\0" in str(directory):
            raise EmbeddedBrokerError(
                f"directory: needed a path without NUL, found {excerpt(str(directory))}"
            )
        if isinstance(directory, str) and _ADDRESS.fullmatch(directory):
            raise EmbeddedBrokerError(
                "directory: the first argument is the directory of the store: needed a path, "
                f"found the address {excerpt(directory)}; for example: EmbeddedBroker(port=9876)"
            )
        if isinstance(port, bool) or not isinstance(port, int):
            raise type_error("port", "a whole number (int)", port, "9876")
        if type(own_process) is not bool:
            raise type_error("own_process", "True or False", own_process, "True")
        if type(tls) is not bool and not isinstance(tls, TlsSettings):
            raise type_error("tls", "True, False or TlsSettings", tls, "True")
        self._is_temporary = directory is None
        self._directory = None if directory is None else Path(directory).expanduser().absolute()
        self._port = port
        self._own_process = own_process
        # After a restart on the same port, another broker may use the port two below.
        self._texts = {"vipChannelEnable": "false", **_texts_of(settings)}
        if self._is_temporary:
            self._texts = {**_TEMPORARY_STORE_DEFAULTS, **self._texts}
        self._tls: EmbeddedTls | None = None
        self._client_tls = tls if isinstance(tls, TlsSettings) else None
        self._makes_certificate = tls is True
        made_later = {}
        if self._makes_certificate:
            _check_no_certificate(self._texts)
            self._texts = {**default_settings(self._texts), **self._texts}
            made_later = dict.fromkeys(
                ("tls.server.certPath", "tls.server.trustCertPath"), "made at the start"
            )
        config = config_of({**made_later, **self._texts, "listenPort": str(port)}, _ARGUMENTS)
        self._bind_address, self._broker_ip = config.bind_address, config.broker_ip1
        self._lifecycle = _Lifecycle.NEW
        self._activity = "running"
        self._owner = os.getpid()
        self._runner: BrokerThread | BrokerProcess | None = None
        self._lifecycle_lock = threading.RLock()
        self.clock = BrokerClock(self._clock_offset, self._advance_clock)
        """The broker's clock, which can be moved forward; a restart does not change it."""

    # ---- start and stop

    def start(self) -> EmbeddedBroker:
        """Start the broker; return it when it accepts connections.

        Raises:
            EmbeddedBrokerError: The broker cannot run, for example because the port or the
                directory is in use, or it was started before. After a failure it may be started
                again.
        """
        with self._lifecycle_lock:
            if self._lifecycle is _Lifecycle.STARTED:
                raise EmbeddedBrokerError(
                    f"the broker runs already, at {self.address}. Use it, or stop it first"
                )
            if self._lifecycle is _Lifecycle.ENDED:
                raise EmbeddedBrokerError(f"the broker {self._lifecycle.value}")
            self._owner = os.getpid()
            try:
                if self._is_temporary:
                    self._directory = Path(tempfile.mkdtemp(prefix="rocketpoll-"))
                if self._makes_certificate:
                    addresses = (self._bind_address, self._broker_ip)
                    self._tls = EmbeddedTls(addresses, self._texts)
                self._launch()
            except BaseException:
                self._remove_files()
                raise
            self._lifecycle = _Lifecycle.STARTED
            _started_brokers.add(self)
            atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """Stop the broker cleanly, and remove its directory if it is temporary.

        This does nothing if the broker does not run, or in a forked process, which does not own the
        broker.

        Raises:
            EmbeddedBrokerError: The broker had ended on its own, or could not save its state.
        """
        if os.getpid() != self._owner:
            return
        with self._lifecycle_lock:
            if self._lifecycle is not _Lifecycle.STARTED:
                return
            if self._runner is not None:
                # a paused broker would not notice that the helpers' client disconnects
                self._runner.resume()
            self._disconnect()
            failure = self._end_runner()  # after an interrupt here, stop() can be called again
            self._lifecycle = _Lifecycle.ENDED
            self._remove_files()
            _started_brokers.discard(self)
            atexit.unregister(self.stop)
            if failure is not None:
                raise EmbeddedBrokerError(
                    f"the broker did not stop cleanly: {failure}"
                ) from failure

    def restart(self) -> None:
        """Stop the broker, unless it was killed, and start it again on the same port and directory.

        Clients lose their connections, and reconnect.

        Raises:
            EmbeddedBrokerError: The broker was not started, was stopped, belongs to another
                process, or cannot start again.
        """
        with self._lifecycle_lock:
            self._check_owner("restart")
            if self._lifecycle is not _Lifecycle.STARTED:
                raise EmbeddedBrokerError(f"the broker {self._lifecycle.value}")
            failure = self._end_runner()
            if failure is not None:
                _log.warning("restarting a broker that did not stop cleanly: %s", failure)
            self._launch()

    def pause(self) -> None:
        """Suspend the broker until `resume`; its connections stay open.

        Raises:
            EmbeddedBrokerError: The broker does not run, or belongs to another process.
        """
        with self._lifecycle_lock:  # a broker that is paused during its stop would never end
            self._check_owner("pause")
            self._running().pause()
            self._activity = "paused"

    def resume(self) -> None:
        """Resume a paused broker.

        Raises:
            EmbeddedBrokerError: The broker does not run, or belongs to another process.
        """
        with self._lifecycle_lock:
            self._check_owner("resume")
            self._running().resume()
            self._activity = "running"

    def kill(self) -> None:
        """Kill the broker's process with SIGKILL, as a crash would; `restart` brings it back.

        Raises:
            EmbeddedBrokerError: The broker runs in a thread, does not run, or belongs to another
                process.
        """
        with self._lifecycle_lock:
            self._check_owner("kill")
            runner = self._running()
            if not isinstance(runner, BrokerProcess):
                raise EmbeddedBrokerError(
                    "a broker in a thread cannot be killed: EmbeddedBroker(own_process=True) can"
                )
            runner.kill()
            self._activity = "killed"

    def lose_power(self) -> None:
        """Crash the broker, discard what it had not flushed to its disk, and start it again.

        Connections are cut, and the port stays the same. Messages acknowledged after a flush, as
        with flushDiskType=SYNC_FLUSH, are kept; other data is as of the last flush.

        Raises:
            EmbeddedBrokerError: The broker does not run, is paused, has a process of its own, or
                belongs to another process; or it cannot start again.
        """
        with self._lifecycle_lock:
            thread = self._thread("lose_power")
            self._disk.has_power = False
            try:
                self._run_operation(
                    lambda: thread.run(_suspend_listening, _OPERATION_TIMEOUT_SECONDS)
                )
                self._end_runner()  # an error is expected: the broker cannot save its state
                self._disk.discard_unflushed()
            finally:
                self._disk.has_power = True
            self._launch()

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        try:
            self.stop()
        except Exception:
            if error is None:
                raise
            _log.exception("stopping the broker has failed as well")

    def __reduce__(self) -> NoReturn:
        raise TypeError("an EmbeddedBroker cannot be pickled: pass its address instead")

    # ---- display

    def __repr__(self) -> str:
        """Return the broker's address and state, without a request to it."""
        if self._runner is None:
            return f"<EmbeddedBroker that {self._lifecycle.value}>"
        where = "a process of its own" if self._own_process else "a thread"
        return f"<EmbeddedBroker {self.address}, {self._activity} in {where}>"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the broker's address, and its topics if it responds."""
        is_running = self._runner is not None and self._activity == "running"
        return self._shown(repr(self)[1:-1], is_running=is_running)

    # ---- addresses

    @property
    def address(self) -> str:
        """The address for clients, as ``127.0.0.1:port``; broker and name server share it.

        Raises:
            EmbeddedBrokerError: The broker does not run.
        """
        port = self.port
        host = _REACHABLE_ADDRESSES.get(self._bind_address, self._bind_address)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def port(self) -> int:
        """The TCP port that the broker listens on, which stays the same after a restart.

        Raises:
            EmbeddedBrokerError: The broker does not run.
        """
        self._running()
        return self._port

    @property
    def directory(self) -> Path:
        """The directory in which the broker keeps all its files.

        Raises:
            EmbeddedBrokerError: The broker does not run.
        """
        self._running()
        if self._directory is None:
            raise AssertionError("a broker that runs has a directory")
        return self._directory

    # ---- TLS

    @property
    def tls(self) -> TlsSettings | None:
        """The TLS settings with which clients reach the broker; None if it needs none.

        Example:
            with EmbeddedBroker(tls=True) as broker:
                instance = ClientInstance(broker.address, tls=broker.tls)

        Raises:
            EmbeddedBrokerError: The broker does not run.
        """
        if self._makes_certificate:
            return self._made_tls().client_settings
        return self._client_tls

    @property
    def ca_file(self) -> Path:
        """The PEM file of the throw-away authority, for clients that want a path.

        Raises:
            EmbeddedBrokerError: The broker does not run, or was made without ``tls=True``.
        """
        return self._made_tls().ca_file

    @property
    def client_file(self) -> Path | None:
        """The PEM file of a certificate with its key for clients, if the broker asks for one.

        Raises:
            EmbeddedBrokerError: The broker does not run, or was made without ``tls=True``.
        """
        return self._made_tls().client_file

    @property
    def spark_options(self) -> dict[str, str]:
        """The options with which Spark's source and sink reach the broker: address and TLS.

        Example:
            spark.read.format("rocketpoll").options(**broker.spark_options, topic="orders").load()

        Raises:
            EmbeddedBrokerError: The broker does not run, or has a certificate of yours, whose
                options only you know.
        """
        options = {"namesrvAddr": self.address}
        if self._client_tls is not None:
            raise EmbeddedBrokerError(
                "the broker has a certificate that was given to it: pass namesrvAddr, tls=true and "
                "tlsCaFile yourself"
            )
        if self._makes_certificate:
            tls = self._made_tls()
            options |= {"tls": "true", "tlsCaFile": str(tls.ca_file)}
            if tls.client_file is not None:
                options["tlsCertFile"] = str(tls.client_file)
        return options

    def _made_tls(self) -> EmbeddedTls:
        if not self._makes_certificate:
            raise EmbeddedBrokerError(
                "the broker has no throw-away authority. Create it with EmbeddedBroker(tls=True)"
            )
        if self._tls is None:
            raise EmbeddedBrokerError(f"the broker {self._lifecycle.value}")
        return self._tls

    # ---- internals

    def _running(self) -> BrokerThread | BrokerProcess:
        if self._runner is None:
            raise EmbeddedBrokerError(f"the broker {self._lifecycle.value}")
        return self._runner

    def _check_owner(self, what: str) -> None:
        if os.getpid() != self._owner:
            raise EmbeddedBrokerError(
                f"process {os.getpid()} cannot {what} the broker of process "
                f"{self._owner}, from which it was forked: create another one here"
            )

    def _launch(self) -> None:
        texts = {
            **({} if self._tls is None else self._tls.broker_settings()),
            **self._texts,
            "listenPort": str(self._port),
            "storePathRootDir": str(self._directory),
        }
        self._apply_to_network_and_disk()
        try:
            with _arguments_of(texts) as arguments:
                runner = (
                    BrokerProcess(broker_command(arguments))
                    if self._own_process
                    else BrokerThread(
                        self._config(texts), self._clock_offset, self._disk, self._network
                    )
                )
                self._port = runner.start()
        except (RocketPollError, OSError) as error:
            raise EmbeddedBrokerError(f"the broker cannot start: {error}") from error
        self._runner = runner
        self._activity = "running"
        if self._faults and isinstance(runner, BrokerThread):
            self._run_operation(lambda: runner.run(self._apply_faults, _OPERATION_TIMEOUT_SECONDS))

    def _config(self, texts: dict[str, str]) -> BrokerConfig:
        """Return settings for a broker in this process, which shares the process's descriptors."""
        config = config_of(texts)
        wanted = config.store.open_files_max
        open_files_max = embedded_open_files_max(wanted)
        if open_files_max < wanted and "maxOpenFiles" in texts:
            _log.warning(
                "maxOpenFiles is %d instead of %d, a quarter of what this process may open: raise "
                "the limit (ulimit -n), or use own_process=True",
                open_files_max,
                wanted,
            )
        return replace(config, store=replace(config.store, open_files_max=open_files_max))

    def _thread(self, name: str) -> BrokerThread:
        self._check_owner(f"use {name} of")
        runner = self._running()
        if not isinstance(runner, BrokerThread):
            raise EmbeddedBrokerError(
                f"{name} needs a broker in a thread of this process: leave out own_process=True"
            )
        if self._activity == "paused":
            raise EmbeddedBrokerError(
                f"{name} needs a running broker, and this one is paused: resume it first"
            )
        return runner

    def _advance_clock(self, seconds: float) -> None:
        with self._lifecycle_lock:
            thread = self._thread("clock.advance")
            self._run_operation(lambda: thread.advance(seconds, _OPERATION_TIMEOUT_SECONDS))

    def _begin_fault(
        self, name: str, record: Callable[[], None], operation: BrokerOperation
    ) -> None:
        with self._lifecycle_lock:
            thread = self._thread(name)
            record()
            self._run_operation(lambda: thread.run(operation, _OPERATION_TIMEOUT_SECONDS))

    def _end_fault(self, record: Callable[[], None], operation: BrokerOperation) -> None:
        if os.getpid() != self._owner:
            return
        with self._lifecycle_lock:
            record()
            runner = self._runner
            if isinstance(runner, BrokerThread):
                if self._activity == "paused":
                    runner.submit(operation)
                else:
                    self._run_operation(lambda: runner.run(operation, _OPERATION_TIMEOUT_SECONDS))

    def _run_operation(self, operation: Callable[[], None]) -> None:
        try:
            operation()
        except FutureTimeoutError:
            raise NotInTime(
                f"the broker did not finish within {_OPERATION_TIMEOUT_SECONDS:.0f} s"
            ) from None
        except CannotListen as error:
            raise EmbeddedBrokerError(f"the broker cannot restart: {error}") from error

    def _end_runner(self) -> Exception | None:
        """Stop the thread or process; return the error of an unclean stop, or None."""
        failure: Exception | None = None
        if self._runner is not None:
            try:
                self._runner.stop()
            except (RocketPollError, OSError) as error:
                failure = error
            self._runner = None
        return failure

    def _remove_files(self) -> None:
        if self._tls is not None:
            self._tls.remove()
            self._tls = None
        if self._is_temporary and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _after_fork(self) -> None:
        """Release what would keep the parent's port or process alive in a forked child."""
        super()._after_fork()
        self._lifecycle_lock = threading.RLock()
        if self._runner is not None:
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            for descriptor in self._runner.descriptors():
                # Replace instead of close: a new file must not get a descriptor that the loop uses.
                os.dup2(nothing, descriptor, inheritable=False)
            os.close(nothing)


def _name_methods_of(*bases: type) -> None:
    """Make Python's TypeErrors name `EmbeddedBroker`, which users know, not its bases."""
    for base in bases:
        for each in vars(base).values():
            if isinstance(each, FunctionType):
                each.__qualname__ = f"{EmbeddedBroker.__qualname__}.{each.__name__}"


_name_methods_of(BrokerFaults, BrokerHelpers)


async def _suspend_listening(controller: BrokerController) -> None:
    controller.server.suspend_listening()


def _texts_of(settings: dict[str, object]) -> dict[str, str]:
    for name, argument in _SETTINGS_OF_ARGUMENTS.items():
        if name in settings:
            raise EmbeddedBrokerError(
                f"{name} is given as {argument}, EmbeddedBroker({argument}=...)"
            )
    return {name: _text_of(value) for name, value in settings.items()}


def _check_no_certificate(texts: dict[str, str]) -> None:
    for name in MADE_SETTINGS:
        if name in texts:
            raise EmbeddedBrokerError(
                f"tls=True makes a certificate of its own: leave out {name}, or pass "
                "tls=TlsSettings.of_files(...), which trusts yours"
            )


@contextmanager
def _arguments_of(texts: dict[str, str]) -> Iterator[list[str]]:
    """Yield the arguments of a broker's process; secrets go to a file that only its user reads."""
    secrets = {name for name in texts if texts[name] and KEYS[name].setting.value_type.is_secret}
    arguments = [f"{name}={text}" for name, text in texts.items() if name not in secrets]
    if not secrets:
        yield arguments
        return
    with tempfile.TemporaryDirectory(
        prefix="rocketpoll-"
    ) as directory:  # only its user may open it
        path = Path(directory, "secrets.conf")
        path.write_text("".join(f"{name}={texts[name]}\n" for name in secrets), encoding="utf-8")
        yield ["-c", str(path), *arguments]


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value if isinstance(value, Enum) else value)


_started_brokers: Final[weakref.WeakSet[EmbeddedBroker]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for broker in _started_brokers:
        broker._after_fork()  # private to this module


os.register_at_fork(after_in_child=_after_fork_in_child)
