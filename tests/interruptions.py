"""Calls that a signal's exception interrupts, at one place after another where Python lets one in.

    interrupted_everywhere(make, do, check)     make() ──▶ do(made), interrupted ──▶ check(made)

Python handles signals behind a call, where a function of its own begins, and where a loop goes on.
Here the exception is raised at each of these in the client and in the modules of threads and
futures, one after the other, until a call comes to its end without: what a thousand signals at
moments of chance find in a day.
"""

from __future__ import annotations

import opcode
import sys
import threading

_IN = ("/rmq_spark/client/", "/threading.py", "/concurrent/futures/_base.py")
_NAMES = (
    "RESUME", "CALL", "CALL_KW", "CALL_FUNCTION", "CALL_METHOD", "CALL_FUNCTION_EX",
    "JUMP_BACKWARD", "JUMP_ABSOLUTE",
)  # fmt: skip
_LETS_SIGNALS_IN = {opcode.opmap[name] for name in _NAMES if name in opcode.opmap}
_PATIENCE_SECONDS = 10


class Signal(BaseException):
    """What a handler raises."""


class _Interruption:
    def __init__(self, number):
        self._left = number
        self.where = None

    def of(self, call):
        """Make the call, and return whether it was interrupted."""
        sys._getframe().f_trace_opcodes = True  # else Python 3.12 tells of none
        sys.settrace(self._traced)
        try:
            call()
        except BaseException:
            if self.where is None:
                raise
        finally:
            sys.settrace(None)
        return self.where is not None

    def _traced(self, frame, *_):
        code = frame.f_code
        if not any(part in code.co_filename for part in _IN):
            return None
        frame.f_trace_opcodes = True
        before = None

        def traced(frame, event, _):
            nonlocal before
            if event == "line":
                frame.f_trace_opcodes = True  # Python 3.13 forgets it in the event of a call
            elif event == "opcode":
                last, before = before, code.co_code[frame.f_lasti]
                if last in _LETS_SIGNALS_IN and self.where is None:
                    if not self._left:
                        self.where = f"{code.co_filename}:{frame.f_lineno} {code.co_name}"
                        raise Signal
                    self._left -= 1
            return traced

        return traced


def interrupted_everywhere(make, do, check, *, step=1, least):
    """Interrupt ``do`` at every place of its way, and look each time what became of it.

    ``least`` is a number of places that there must be.
    """
    number = 0
    while True:
        made = make()
        interruption = _Interruption(number)
        if not interruption.of(lambda made=made: do(made)):
            break
        try:
            check(made)
        except Exception as error:
            raise AssertionError(f"interrupted at {interruption.where} (place {number})") from error
        number += step
    assert number >= least, number


def in_another_thread(call):
    """Make a call in another thread, as nobody there may wait for one who was interrupted."""
    errors = []

    def run():
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    assert not thread.is_alive(), "it waits for ever"
    if errors:
        raise errors[0]
