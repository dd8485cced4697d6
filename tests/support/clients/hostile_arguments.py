"""Calls with hostile values: arguments for each parameter, and a check of how the call ends.

A call may succeed, raise a `ClientError`, or raise a TypeError or ValueError that names the
parameter, or the field within it, and says what was needed. Everything else is a fault: internal
errors, calls that do not end, errors in other threads, and flags that accept values other than True
and False.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from rmq_spark.client.errors import ClientError

PATIENCE_S = 5
DEEPEST = 3
LONGEST = 1_000
_FLAG = "bool"  # as in annotations
_UNKNOWN_TO_CALLERS = re.compile(r"extFields|^ ")
"""Errors that expose wire field names, or an address with an empty part."""

HOSTILE = (
    10**30,
    -1,
    0,
    2**31,
    2**63,
    True,
    1.5,
    float("nan"),
    "",
    "false",
    "\ud800",
    "a\x00b",
    "\x01",
    "x" * 70_000,
    b"",
    b"x",
    None,
    object(),
    [],
    {},
    {"a": 1},
)


class Variant(NamedTuple):
    """A hostile value for a parameter, or a valid one that contains a hostile value."""

    value: Any
    names: tuple[str, ...]
    """Path of the wrong field as the error should name it, outermost first; items of sequences have
    no name."""

    hostile: Any
    must_be_refused: bool = False

    def within(self, name: str, value: Any, kind: object = None) -> Variant:
        """Wrap this value in a field with this name, of a value of this kind."""
        is_no_flag = kind == _FLAG and not self.names and not isinstance(self.hostile, bool)
        return Variant(value, (name, *self.names), self.hostile, self.must_be_refused or is_no_flag)

    def __str__(self) -> str:
        return f"{'.'.join(name or '[]' for name in self.names)}={shown(self.hostile)}"


class Call(NamedTuple):
    """One way to call the API: the function, whose signature counts, and valid arguments."""

    function: Callable[..., Any]
    valid: Mapping[str, Any]
    run: Callable[..., Any] | None = None
    """Called with the arguments instead of the function, to consume its result or to prepare the
    call."""

    also_named: Mapping[str, str] = MappingProxyType({})
    """Alternative names of parameters in errors."""

    more: Callable[..., Any] | None = None
    """The function that ``**settings`` are passed to."""


def parameters_of(
    function: Callable[..., Any], more: Callable[..., Any] | None = None
) -> tuple[str, ...]:
    """Return the parameter names of a function, and the keyword-only ones of ``more``."""
    found = inspect.signature(function).parameters.values()
    names = [
        each.name for each in found if each.name != "self" and each.kind is not each.VAR_KEYWORD
    ]
    if more is not None:
        named = inspect.signature(more).parameters.values()
        names += [each.name for each in named if each.kind is each.KEYWORD_ONLY]
    return tuple(names)


def variants(valid: Any, depth: int = 0) -> Iterator[Variant]:
    """Yield all hostile values for one parameter: in place of the valid value, and nested in it."""
    for hostile in HOSTILE:
        yield Variant(hostile, (), hostile)
    if depth == DEEPEST:
        return
    if isinstance(valid, list):
        for each in variants(valid[0], depth + 1):
            yield each.within("", [each.value, *valid[1:]])
    elif isinstance(valid, dict):
        yield from _variants_of_pair(valid, depth)
    else:
        yield from _variants_of_fields(valid, depth)


def _variants_of_pair(valid: dict[Any, Any], depth: int) -> Iterator[Variant]:
    ((key, inner),) = valid.items()
    for each in variants(inner, depth + 1):
        yield each.within("", {key: each.value})
    for each in variants(key, depth + 1):
        if _is_hashable(each.value):
            yield each.within("", {each.value: inner})


def _variants_of_fields(valid: Any, depth: int) -> Iterator[Variant]:
    if dataclasses.is_dataclass(valid) and not isinstance(valid, type):
        for field in dataclasses.fields(valid):
            for each in variants(getattr(valid, field.name), depth + 1):
                yield each.within(field.name, _with(valid, field.name, each.value), field.type)
    for name in getattr(valid, "_fields", ()):
        for each in variants(getattr(valid, name), depth + 1):
            yield each.within(name, valid._replace(**{name: each.value}))


def _with(valid: Any, name: str, value: Any) -> Any:
    """Return a copy with one field replaced, even if the class would refuse the value."""
    changed = copy.copy(valid)
    object.__setattr__(changed, name, value)
    return changed


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def faults_of(call: Call) -> list[str]:
    """Make a call with all hostile values, one at a time; return a line for each failure."""
    faults = []
    run = call.run or call.function
    with errors_elsewhere(faults):
        faults += _fault(run, call.valid, "with valid arguments", None)
        for name in parameters_of(call.function, call.more):
            also = call.also_named.get(name, "")
            for inner in variants(call.valid[name]):
                each = inner.within(name, inner.value, _kind_of(call.function, name))
                arguments = {**call.valid, name: each.value}
                found = _fault(
                    run, arguments, str(each), (*each.names, also), is_wrong=each.must_be_refused
                )
                faults += found
    return faults


def _kind_of(function: Callable[..., Any], name: str) -> object:
    parameter = inspect.signature(function).parameters.get(name)
    return None if parameter is None else parameter.annotation


def _fault(
    run: Callable[..., Any],
    arguments: Mapping[str, Any],
    said: str,
    names: tuple[str, ...] | None,
    *,
    is_wrong: bool = False,
) -> list[str]:
    """Return the failure of one call, or None. Without names, the call has to succeed."""
    ended: list[BaseException | None] = []

    def make() -> None:
        try:
            result = run(**arguments)
            if isinstance(result, Future):
                result.result(PATIENCE_S)
        except BaseException as error:
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if not ended:
        return [f"{said}: does not come to an end"]
    error = ended[0]
    if error is None and is_wrong:
        return [f"{said}: was taken for True or False"]
    if error is None or (names is not None and may_be_raised(error, names)):
        return []
    return [f"{said}: {type(error).__name__}: {shown(str(error))}{_place(error)}"]


def may_be_raised(error: BaseException, names: tuple[str, ...]) -> bool:
    """Return whether an error describes the problem and names the field."""
    text = str(error)
    if len(text) > LONGEST or not _is_shown(text) or _UNKNOWN_TO_CALLERS.search(text):
        return False
    if isinstance(error, ClientError):
        return bool(text)
    is_named = any(name in text or _singular(name) in text for name in names if name)
    return type(error) in (TypeError, ValueError) and "needed" in text and is_named


def _is_shown(text: str) -> bool:
    """Return whether terminals and log files can display a text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _singular(name: str) -> str:
    """Return the singular form of a field name: property for properties."""
    return f"{name[:-3]}y" if name.endswith("ies") else name.removesuffix("s")


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" ({trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"


def shown(value: Any) -> str:
    """Return a shortened text of a value."""
    text = ascii(value)
    return text if len(text) <= 120 else f"{text[:60]}...{text[-40:]}"


class _Tracebacks(logging.Handler):
    """Collects errors that are logged with a traceback, which are unexpected."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__()
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line = f"logged: {record.getMessage()}: {type(error).__name__}: {error}{_place(error)}"
            if line[:200] not in self._faults:
                self._faults.append(line[:200])


@contextmanager
def errors_elsewhere(faults: list[str]) -> Iterator[None]:
    """Collect errors of other threads: uncaught exceptions, and tracebacks in the log."""

    def ended(args: threading.ExceptHookArgs) -> None:
        faults.append(f"in another thread: {args.exc_type.__name__}: {args.exc_value}")

    before, threading.excepthook = threading.excepthook, ended
    handler = _Tracebacks(faults)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        threading.excepthook = before
