"""A Spark driver that a test holds at any point of a query, and kills there:
the child of `driver_processes`.

The driver reads commands, one line of JSON each, and answers each with a line: ``start`` a query,
``stop`` it, wait for its ``end``. Its source is the real one under another name. Before and after
Spark's calls, a process looks for a file with the point's name in a directory. While the file
exists, the process reports its id and waits:

    latest              Spark is about to ask for offsets/N
    latest-done         the end of batch N is known, and not written
    partitions          offsets/N is written
    partitions-done     the batch is planned
    task                a task has returned its first rows
    straggler           the same, and only the first task waits
    sink                the sink has the rows of batch N, in a file that does not count yet
    sink-done           the file counts, commits/N is not written
    commit              commits/N is written
    unsent              a task has rows, and has sent none to a topic
    sent                a task has sent its rows to a topic, and has not reported it
    manifest            all tasks have reported, and the batch is not committed
    shown               the rows are visible to all, and the manifest is not stored
    stored              the manifest is stored, and not checked to be visible
    manifest-done       the batch is committed, commits/N is not written

Rows go to a file per batch. A batch that runs again must have the same rows, or the sink reports
it. With ``windows``, the rows are closed windows of time and their counts of messages: the second
word of a body is its second, and several topics, each with its own source, are counted together.
With ``into``, the real sink writes the rows to a topic, in other partitions at each run of a batch.
"""

import faulthandler
import functools
import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions

from rmq_spark.client.reading import readable_chunks
from rmq_spark.spark.data_source import FORMAT, RocketPollDataSource
from rmq_spark.spark.exactly_once import manifest_commit, staged_commit
from rmq_spark.spark.stream_reader import stream_reader
from rmq_spark.spark.writer import stream_writer

HELD_FORMAT = f"{FORMAT}-held"
HOLDS = "holds"
"""The option that names the directory of the hold files."""

WAIT_UNTIL_SEEN = manifest_commit._wait_until_visible

_POLL_SECONDS = 0.02
_STUCK_SECONDS = 310
"""Exceeds every timeout of the tests: a process that is still blocked then logs its stack."""

_NOT_IN_TIME = "Python worker failed to connect back"


class Holds:
    """The directory in which a test holds processes at points."""

    def __init__(self, directory):
        self._directory = Path(directory)

    def pass_by(self, point, *, only_first=False):
        """Wait while the file of this point exists; the file `reached` names the
        waiting process."""
        hold = self._directory / point
        reached = self._directory / f"{point}.reached"
        if not hold.exists():
            return
        said = reached.with_suffix(f".{os.getpid()}")
        said.write_text(str(os.getpid()))
        if only_first:
            try:
                # atomic: only one of two concurrent processes is the first
                reached.hardlink_to(said)
            except FileExistsError:
                return
            finally:
                said.unlink()
        else:
            said.replace(reached)
        # a new hold begins when the second file is deleted
        while hold.exists() and reached.exists():
            time.sleep(_POLL_SECONDS)


def held_reader(given, schema, holds):
    """Return the reader for this Spark version, held before and after its methods."""
    made = stream_reader(given, schema)

    def held(name, before, after):
        original = getattr(type(made), name)

        @functools.wraps(original)  # Spark inspects the number of parameters
        def method(self, *arguments):
            holds.pass_by(before)
            found = original(self, *arguments)
            holds.pass_by(after)
            return found

        return method

    def read(self, partition):
        readable_chunks.BATCH_BYTES_MIN = (
            1  # each response becomes a record batch, so that a task has several
        )
        for number, rows in enumerate(type(made).read(self, partition)):
            yield rows
            if not number:
                holds.pass_by("task")
                holds.pass_by("straggler", only_first=True)

    methods = {
        "latestOffset": held("latestOffset", "latest", "latest-done"),
        "partitions": held("partitions", "partitions", "partitions-done"),
        "commit": held("commit", "commit", "commit-done"),
        "read": read,
    }
    return type("HeldReader", (type(made),), methods)(given, schema)


def held_writer(given, schema, overwrite, holds):
    """Return the writer for this Spark version, held before and after its commit."""
    made = stream_writer(given, schema, overwrite=overwrite)

    def write(self, rows):
        holds.pass_by("unsent", only_first=True)
        found = type(made).write(self, rows)
        holds.pass_by("sent", only_first=True)
        return found

    def store_manifest(*arguments, **more):
        holds.pass_by("shown")
        manifest_commit.commit(*arguments, **more)

    def wait_until_seen(*arguments):
        holds.pass_by("stored")
        WAIT_UNTIL_SEEN(*arguments)

    def commit(self, messages, batchId):  # noqa: N803  # name in Spark's interface
        staged_commit.commit = store_manifest
        manifest_commit._wait_until_visible = wait_until_seen
        holds.pass_by("manifest")
        type(made).commit(self, messages, batchId)
        holds.pass_by("manifest-done")

    methods = {"write": write, "commit": commit}
    return type("HeldWriter", (type(made),), methods)(given, schema)


class HeldSource(RocketPollDataSource):
    """The real source, with one more option."""

    def __init__(self, options):
        options = dict(options)
        self._holds = Holds(options.pop(HOLDS))
        super().__init__(options)

    @classmethod
    def name(cls):
        return HELD_FORMAT

    def streamReader(self, schema):  # noqa: N802  # name in Spark's interface
        return held_reader(self.options, schema, self._holds)

    def streamWriter(self, schema, overwrite):  # noqa: N802  # name in Spark's interface
        return held_writer(self.options, schema, overwrite, self._holds)


class FilePerBatch:
    """An idempotent sink: a repeated batch replaces the first one."""

    def __init__(self, directory, holds):
        self._directory = Path(directory)
        self._holds = holds

    def __call__(self, rows, batch_id):
        found = sorted([*row] for row in rows.collect())
        file = self._directory / f"{batch_id:06d}.json"
        written = self._directory / f"{batch_id:06d}.{time.time_ns()}.tmp"
        written.write_text(json.dumps(found))
        self._holds.pass_by("sink")
        if file.exists() and json.loads(file.read_text()) != found:
            written.rename(file.with_suffix(".differs"))
            return
        written.replace(file)
        self._holds.pass_by("sink-done")


def start(spark, command):
    """Start a query; retry once if its planner does not start within Spark's ten seconds."""
    while True:
        query = start_once(spark, command)
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(_POLL_SECONDS)
        if _NOT_IN_TIME not in str(query.exception()):
            return query


def start_once(spark, command):
    """Start a query."""
    rows = windows_of(spark, command) if "windows" in command else bodies_of(spark, command)
    if "into" in command:
        writer = rows.select("body").repartition(3).writeStream.format(HELD_FORMAT)
        writer = writer.options(**command["into"], **{HOLDS: command["holds"]})
        return writer.option("checkpointLocation", command["checkpoint"]).start()
    sink = FilePerBatch(command["sink"], Holds(command["holds"]))
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", command["checkpoint"])
    return writer.trigger(**command.get("trigger", {"processingTime": "0 seconds"})).start()


def bodies_of(spark, command, **more):
    """Read a stream of messages, with bodies as text."""
    columns = {"columns": "topic,queueId,queueOffset,body"}
    options = {**columns, **command["options"], **more, HOLDS: command["holds"]}
    stream = spark.readStream.format(HELD_FORMAT).options(**options).load()
    return stream.withColumn("body", stream.body.cast("string"))


def windows_of(spark, command):
    """Count the messages of several streams by the time in their bodies."""
    told = command["windows"]
    streams = [bodies_of(spark, command, subscribe=topic) for topic in told["topics"]]
    second = functions.split("body", " ")[1].cast("long")
    rows = functools.reduce(DataFrame.unionAll, streams)
    rows = rows.select(functions.timestamp_seconds(second).alias("at"))
    window = functions.window("at", f"{told['seconds']} seconds")
    counted = rows.withWatermark("at", f"{told['delay']} seconds").groupBy(window).count()
    return counted.select(functions.unix_timestamp("window.start"), "count")


def main():
    """Answer commands until stdin ends."""
    builder = SparkSession.builder.master(sys.argv[1])
    for setting in sys.argv[2:]:
        builder = builder.config(*setting.split("=", 1))
    spark = builder.getOrCreate()
    spark.dataSource.register(HeldSource)
    answer = functools.partial(print, flush=True)
    answer(json.dumps({"ready": os.getpid()}))
    query = None
    for line in sys.stdin:
        faulthandler.dump_traceback_later(_STUCK_SECONDS)
        command = json.loads(line)
        answered = {}
        try:
            if command["do"] == "start":
                query = start(spark, command)
            elif command["do"] == "stop":
                ended_by = query.exception()
                query.stop()
                if ended_by is not None:
                    answered["error"] = str(ended_by)
            elif command["do"] == "end":
                answered["ended"] = query.awaitTermination(command["seconds"])
        except Exception as error:  # the test checks it
            answered["error"] = str(error)
        faulthandler.cancel_dump_traceback_later()
        answer(json.dumps(answered))


if __name__ == "__main__":
    main()
