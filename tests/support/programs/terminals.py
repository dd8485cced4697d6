"""A program on a terminal of its own, and all that it writes there.

The terminal is the same wherever the tests run: programs do not see TERM, the size or the colors of
the terminal of the caller. A machine without pseudo-terminals, as a container without /dev/pts,
skips these tests.
"""

from __future__ import annotations

import os
import subprocess

import pytest

LOOK = {"TERM": "xterm", "COLUMNS": "90", "LINES": "30"}
_OF_CALLERS = ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""What rich looks for beside TERM to find out what a terminal can do."""


def new_terminal():
    """The two ends of a new terminal, ours and the program's; skips where there is none."""
    try:
        return os.openpty()
    except (AttributeError, OSError) as error:
        pytest.skip(f"this machine has no pseudo-terminals: {error}; mount /dev/pts")


def terminal_environment(**more):
    """The environment of a program on such a terminal."""
    ours = {name: value for name, value in os.environ.items() if name not in _OF_CALLERS}
    return {**ours, **LOOK, **more}


def look_like_one(monkeypatch):
    """Have this process see the environment of such a terminal."""
    for name in _OF_CALLERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in LOOK.items():
        monkeypatch.setenv(name, value)


def written_to_a_terminal(command, **environment):
    """Run a command to a good end; what stands on its terminal, with all escapes."""
    ours, its = new_terminal()
    with open(ours, "rb", buffering=0) as terminal:  # noqa: PTH123  # a descriptor
        with subprocess.Popen(
            command, stdin=its, stdout=its, env=terminal_environment(**environment)
        ) as program:
            os.close(its)
            written = b"".join(iter(lambda: _piece(terminal), b""))
        assert program.returncode == 0
    return written.decode()


def _piece(terminal):
    """What has come; nothing when nobody is left on the other side."""
    try:
        return terminal.read(65_536)
    except OSError:
        return b""
