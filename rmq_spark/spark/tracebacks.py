"""Tracebacks: Spark shows our errors without our frames, so that the message is read first.

    method of a source or sink ──> our error ──> raised again, without frames and causes
                                                 (a worker of Spark then shows no traceback)
                               ──> a bug ──────> raised as it is, with its traceback

This module imports next to nothing, because Spark imports `data_source`, which uses it, for every
query.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isfunction, isgeneratorfunction
from typing import Any, Final, TypeVar

from rmq_spark.errors import RocketPollError

Class = TypeVar("Class", bound="type[Any]")


def without_frames(cls: Class) -> Class:
    """Decorate a class that Spark calls, and whose errors it shows with a traceback.

    Its constructor and public methods raise our errors without our frames and causes, so that the
    message is read first; Spark's workers show them without any. Other exceptions are bugs, and
    keep their traceback.
    """
    for name, method in tuple(vars(cls).items()):
        if isfunction(method) and (name == "__init__" or not name.startswith("_")):
            wrap = _without_frames_of_rows if isgeneratorfunction(method) else _without_frames
            setattr(cls, name, wrap(method))
    return cls


def _without_frames(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **given: Any) -> Any:
        try:
            return method(*args, **given)
        except RocketPollError as error:
            _hide_worker_traceback(is_hidden=True)
            raise error.with_traceback(None) from None
        except Exception:
            _hide_worker_traceback(is_hidden=False)
            raise

    return call


def _without_frames_of_rows(method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @wraps(method)
    def generate(*args: Any, **given: Any) -> Iterator[Any]:
        try:
            yield from method(*args, **given)
        except RocketPollError as error:
            _hide_worker_traceback(is_hidden=True)
            raise error.with_traceback(None) from None
        except Exception:
            _hide_worker_traceback(is_hidden=False)
            raise

    return generate


_SIMPLIFIED_TRACEBACK: Final = "SPARK_SIMPLIFIED_TRACEBACK"
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
_HIDDEN_HERE: Final = "rocketpoll"


def _hide_worker_traceback(*, is_hidden: bool) -> None:
    """Hide or show the traceback of the next error, if this process is a worker of Spark.

    Spark sets the first variable in workers, unless users want to see whole tracebacks. The second
    one names this module, because the last frame of the error is here. A worker ends with its
    error, so nothing has to be restored then.
    """
    if is_hidden and os.environ.get(_SIMPLIFIED_TRACEBACK):
        os.environ.setdefault(_HIDE_TRACEBACK, _HIDDEN_HERE)
    elif os.environ.get(_HIDE_TRACEBACK) == _HIDDEN_HERE:
        del os.environ[_HIDE_TRACEBACK]
