"""Start script of the store tools (dump, verify, stat), run by its path.

`rmq_spark.cli.cluster.store_command` runs it, because the command line never imports the broker.
The broker of this file's directory comes first in ``sys.path``, whatever the working directory
contains.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

_TOOLS: Final = ("dump", "verify", "stat")


def start_store() -> int:
    """Run the tool that the first argument names with the other arguments; return its exit code."""
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # instead of the folder of this file
    name, *arguments = sys.argv[1:]
    if name not in _TOOLS:
        sys.exit(f"there is no tool {name!r}, only {', '.join(_TOOLS)}")
    tool = import_module(f"rocketpoll.broker.store.tools.{name}")
    try:
        code: int = tool.main(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


if __name__ == "__main__":
    sys.exit(start_store())
