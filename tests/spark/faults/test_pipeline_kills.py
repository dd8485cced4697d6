"""Two exactly-once queries in a pipeline: sums are exact, whichever process is killed.

Longer runs: make restarts, or ROCKETPOLL_PIPELINE_SECONDS=600.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from random import Random

import pytest
from support.spark.driver_processes import ROOT, wait_until
from support.suite.selection import count

from rocketpoll import EmbeddedBroker, read_committed

PROGRAM = ROOT / "tests" / "spark" / "programs" / "pipeline.py"
MODULES = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
SECONDS = count("ROCKETPOLL_PIPELINE_SECONDS", 40, wide=600)
SEED = int(os.environ.get("ROCKETPOLL_PIPELINE_SEED", "1"))
SHOPS = ("ada", "bob", "eve")
BEGIN_SECOND = 1_700_000_040  # the start of a minute
STEP_SECONDS = 5  # event time between payments
SHORT_SECONDS, LONG_SECONDS = 10, 60
PAUSE_SECONDS = 0.3
KILL_SECONDS = (4, 20)
END_SECONDS = 600
END_STEP_SECONDS = 300  # event time of the message that closes all windows, after the last payment


class Pipeline:
    """A broker, the program, and the payments."""

    def __init__(self, directory, dice):
        self._directory, self._dice = directory, dice
        self.broker = EmbeddedBroker(directory / "broker", own_process=True)
        self._program = None
        self._second = BEGIN_SECOND
        self.paid = Counter()
        self.kills = Counter()

    def __enter__(self):
        self.broker.start()
        for topic in ("payments", "totals", "sums"):
            self.broker.create_topic(topic, 4)
        self._start()
        return self

    def __exit__(self, *_):
        self._end_program()
        self.broker.stop()

    def pay(self):
        """Send payments of each shop, while nothing is being killed."""
        for shop in SHOPS:
            amounts = [Decimal(self._dice.randrange(1, 1_000_000)).scaleb(-2) for _ in range(4)]
            self._send(shop, *amounts)
            self.paid[shop, self._second - self._second % LONG_SECONDS] += sum(amounts)
        self._second += STEP_SECONDS

    def watch(self):
        """Restart the program if it has ended, as a supervisor would: Spark fails if the Python
        process that looks for data sources is killed."""
        if self._program.poll() is not None:
            self._start()
            self.kills["ended"] += 1

    def let_time_pass(self):
        """Close all windows; the messages sent for this belong to a minute of their own."""
        self._second += END_STEP_SECONDS
        self._send(SHOPS[0], Decimal("0.01"))

    def kill(self):
        """Kill one of the processes, and restart it."""
        victim = self._dice.choice(["driver", "broker", "worker", "worker"])
        if victim == "driver":
            self._end_program()
            self._start()
        elif victim == "broker":
            self.broker.kill()
            time.sleep(self._dice.random())
            self.broker.restart()
        else:
            workers = self._workers()
            if not workers:
                return
            with suppress(ProcessLookupError):
                os.kill(self._dice.choice(workers), signal.SIGKILL)
        self.kills[victim] += 1

    def added(self, topic, seconds, texts):
        """Return the amounts in a topic by shop and time span; each must occur once."""
        found = Counter()
        for text in texts:
            shop, began, total = text.split(" ")
            assert (shop, int(began)) not in found, f"{topic} has {text} for the second time"
            found[shop, int(began)] = Decimal(total)
        longer = Counter()
        for (shop, began), total in found.items():
            longer[shop, began - began % seconds] += total
        return longer

    def sums(self):
        """Return the final sums as an ordinary consumer sees them."""
        texts = [message.text for message in self.broker.messages("sums")]
        return self.added("sums", LONG_SECONDS, texts)

    def totals(self):
        """Return the committed totals of the topic between the queries."""
        bodies = read_committed("totals", self.broker.address)["body"].to_pylist()
        return self.added("totals", LONG_SECONDS, [body.decode() for body in bodies])

    def _send(self, shop, *amounts):
        texts = [f"{shop} {self._second} {amount}" for amount in amounts]
        self.broker.send("payments", *texts)

    def _start(self):
        with (self._directory / "program.log").open("a") as log:
            self._program = subprocess.Popen(
                [sys.executable, str(PROGRAM), self.broker.address, str(self._directory / "run")],
                env={**os.environ, "PYTHONPATH": MODULES, "PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _end_program(self):
        os.killpg(self._program.pid, signal.SIGKILL)
        self._program.wait()

    def _workers(self):
        """Return all other Python processes of the program's session: planners, sinks
        and workers."""
        found = []
        for directory in Path("/proc").iterdir():
            if not directory.name.isdecimal():
                continue
            with suppress(OSError, IndexError):
                name, session = _name_and_session(directory)
                if session == self._program.pid and "python" in name:
                    found.append(int(directory.name))
        return sorted(set(found) - {self._program.pid})


def _name_and_session(directory):
    """Return the name and the session of a process."""
    name, _, rest = (directory / "stat").read_text().rpartition(")")
    return name, int(rest.split()[3])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
@pytest.mark.timeout(SECONDS + END_SECONDS + 120)
def test_kills_keep_sums_exact_over_two_exactly_once_queries(tmp_path):
    dice = Random(SEED)
    with Pipeline(tmp_path, dice) as pipeline:
        pipeline.pay()
        end = time.monotonic() + SECONDS
        kill_at = time.monotonic() + dice.uniform(*KILL_SECONDS)
        while time.monotonic() < end:
            pipeline.pay()
            time.sleep(PAUSE_SECONDS)
            if time.monotonic() >= kill_at:
                pipeline.watch()
                pipeline.kill()
                kill_at = time.monotonic() + dice.uniform(*KILL_SECONDS)

        def is_over():
            pipeline.watch()
            pipeline.let_time_pass()
            time.sleep(PAUSE_SECONDS)
            return pipeline.sums().keys() >= pipeline.paid.keys()

        wait_until(is_over, END_SECONDS, f"the sums of all minutes, behind {pipeline.kills}")
        totals, sums = pipeline.totals(), pipeline.sums()
        assert {each: totals[each] for each in pipeline.paid} == dict(pipeline.paid)
        assert {each: sums[each] for each in pipeline.paid} == dict(pipeline.paid)
        paid = f"{sum(pipeline.paid.values())} in {len(pipeline.paid)} sums"
        sys.stdout.write(f"{paid}, behind {dict(pipeline.kills)}\n")
