"""Start script of the broker, run by its path: runs the broker in the same directory.

``python -m rocketpoll.broker`` would search the working directory first, which may contain another
module named ``rocketpoll``, and Python 3.10 has no ``-P`` to prevent that. Therefore
`rmq_spark.cli.cluster.broker_launcher` runs this file. It uses the broker of its own directory,
and reports it if another ``rocketpoll`` comes first in PYTHONPATH.
"""

from __future__ import annotations

import sys
from pathlib import Path


def start_broker() -> int:
    """Run the broker with this process's arguments, and return its exit code."""
    root = Path(__file__).resolve().parents[1]
    del sys.path[0]  # the folder of this file, which Python puts first for a program
    if str(root) not in sys.path:
        sys.path.append(str(root))
    import rocketpoll  # noqa: PLC0415  # after the path is set

    found = Path(rocketpoll.__file__ or ".").resolve().parent
    if found != root / "rocketpoll":
        sys.exit(
            f"this is rocketpoll in {root / 'rocketpoll'}, but 'import rocketpoll' finds {found}: "
            "rename that, or take its directory out of PYTHONPATH"
        )
    from rocketpoll.broker.process.process_setup import set_up_process  # noqa: PLC0415  # after the path is set

    set_up_process(sys.argv[1:])
    from rocketpoll.broker.__main__ import main  # noqa: PLC0415  # after the check

    return main(program="rocketpoll broker")


if __name__ == "__main__":
    sys.exit(start_broker())
