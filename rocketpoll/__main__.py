"""``python -m rocketpoll COMMAND ...``: the command line, where no such script is on PATH."""

from __future__ import annotations

import sys

from rmq_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
