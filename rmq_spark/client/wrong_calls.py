"""Wrong calls: what to say of arguments that a method does not take, or lacks.

Consumers, and all of asyncio, hand their calls on. Python's own error names the class that a call
was handed on to, which its user does not know.

It imports `inspect`, and is for what has failed: nothing that is imported at a start needs it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MethodType
from typing import Any

from rmq_spark.nearest import nearest


def check_call(method: MethodType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise an error if a method cannot be called with these arguments.

    Raises:
        TypeError: It names the class of the object that the method is bound to, and the name that
            was meant, if there is one like it.
    """
    signature = inspect.signature(method)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        unknown = next((name for name in kwargs if name not in signature.parameters), None)
        meant = None if unknown is None else nearest(unknown, signature.parameters)
        hint = "" if meant is None else f": did you mean {meant}?"
        what = str(error) if unknown is None else f"got an unexpected keyword argument {unknown!r}"
        where = f"{type(method.__self__).__name__}.{method.__name__}()"
        raise TypeError(f"{where} {what}{hint}") from None
