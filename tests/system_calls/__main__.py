"""``python -m system_calls ORDERS [argument ...]``: a broker whose system calls
on files are recorded.

ORDERS is JSON: ``disk``, ``recording``, ``seed`` and ``rules``. The rest is for the broker.
"""

import json
import sys

from system_calls.recorder import Recorder
from system_calls.recording import RecordingWriter
from system_calls.rules import Rule, Rules


def main():
    orders = json.loads(sys.argv[1])
    rules = Rules([Rule(**each) for each in orders["rules"]])
    recorder = Recorder(orders["disk"], RecordingWriter(orders["recording"]), rules, orders["seed"])
    recorder.install()
    from rocketpoll.broker.__main__ import main as run_broker  # noqa: PLC0415  # imported after the recorder is installed

    return run_broker(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
