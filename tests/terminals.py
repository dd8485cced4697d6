"""A program on a terminal of its own, and all that it writes there."""

from __future__ import annotations

import os
import subprocess


def written_to_a_terminal(command, **environment):
    """Run a command to a good end; what stands on its terminal, with all escapes."""
    ours, its = os.openpty()
    look = {"TERM": "xterm", "COLUMNS": "90", "LINES": "30"}
    with open(ours, "rb", buffering=0) as terminal:  # noqa: PTH123  # a descriptor
        with subprocess.Popen(
            command, stdin=its, stdout=its, env={**os.environ, **look, **environment}
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
