"""Programs on a pseudo-terminal, and their output.

The terminal does not depend on the caller's: programs do not see the caller's TERM, size or colors.
On a machine without pseudo-terminals, such as a container without /dev/pts, these tests are
skipped.
"""

import os
import subprocess

import pytest

LOOK = {"TERM": "xterm", "COLUMNS": "90", "LINES": "30"}
_OF_CALLERS = ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""The variables besides TERM from which rich detects a terminal's features."""


def new_terminal():
    """Return the two ends of a new terminal, first ours; skip if there is none."""
    try:
        return os.openpty()
    except (AttributeError, OSError) as error:
        pytest.skip(f"this machine has no pseudo-terminals: {error}; mount /dev/pts")


def terminal_environment(**more):
    """Return the environment variables of such a terminal."""
    ours = {name: value for name, value in os.environ.items() if name not in _OF_CALLERS}
    return {**ours, **LOOK, **more}


def look_like_one(monkeypatch):
    """Give this process the environment variables of such a terminal."""
    for name in _OF_CALLERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in LOOK.items():
        monkeypatch.setenv(name, value)


def written_to_a_terminal(command, **environment):
    """Run a command that must succeed; return its terminal output, with all escapes."""
    __tracebackhide__ = True
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
    """Read the next output; empty when the other side is closed."""
    try:
        return terminal.read(65_536)
    except OSError:
        return b""
