"""The recorder sees every system call that changes a disk, and can make calls fail by rule."""

import errno
import random
import signal
from pathlib import PurePath

import pytest
from support.disks.faulty_disk import tree_in
from support.disks.file_versions import Choices
from support.disks.power_loss import states
from system_calls.recorded_programs import RecordedProgram
from system_calls.replay import Unseen
from system_calls.rules import Rule

EVERYTHING = """
    (disk / "a/b").mkdir(parents=True)
    os.mkdir(disk / "gone")
    with_open = os.open(disk / "a/log", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(with_open, 10_000)
    os.pwrite(with_open, memoryview(b"page" * 2000), 1000)
    os.write(with_open, b"first")
    os.write(with_open, b"second")
    os.posix_fallocate(with_open, 0, 12_000)
    os.fdatasync(with_open)
    os.close(with_open)
    at_end = os.open(disk / "a/small", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(at_end, b"at the end")
    os.write(at_end, b", too")
    os.fsync(at_end)
    again = os.open(disk / "a/small.tmp", os.O_WRONLY | os.O_CREAT)
    os.write(again, b"content")
    emptied = os.open(disk / "a/small.tmp", os.O_WRONLY | os.O_TRUNC)
    os.write(emptied, b"new")
    (disk / "a/small.tmp").rename(disk / "a/renamed")
    (disk / "a/renamed").replace(disk / "a/replaced")
    os.rename(str(disk / "a/replaced"), os.fsencode(disk / "a/last"))
    os.remove(disk / "a/small")
    (disk / "missing").unlink(missing_ok=True)
    (disk / "a/b").rmdir()
    os.rmdir(disk / "gone")
    directory = os.open(disk / "a", os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    Path(disk.parent, "elsewhere").write_bytes(b"not on the disk")
    (disk / "a/last").read_bytes()
"""

WRITE = """
    file = os.open(disk / "log", os.O_RDWR | os.O_CREAT)
    written = os.pwrite(file, b"0123456789" * 10, 0)
    print(written, flush=True)
"""

FLUSH = """
    file = os.open(disk / "log", os.O_RDWR | os.O_CREAT)
    root = os.open(disk, os.O_RDONLY)
    os.write(file, b"1")
    os.fsync(file)
    os.fsync(root)
    os.pwrite(file, b"2", 1)
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a program to its end."""

    def run(program, *rules):
        with RecordedProgram(tmp_path, program, *rules) as recorded:
            recorded.said, recorded.code = recorded.ended()
            return recorded

    return run


def contents(tree):
    return {path.as_posix(): image and image.content for path, image in tree.items()}


def left(program):
    """Return the rest of the log if all names are kept, and all unflushed content is lost."""
    no_name, all_content = (Choices(random.Random(1), odds) for odds in (1.0, 0.0))
    return contents(program.model().draw(no_name, all_content))["log"]


# ---- recorded calls


def test_recorded_system_calls_match_the_disk(run):
    program = run(EVERYTHING)
    assert program.code == 0
    assert contents(program.model().seen()) == contents(tree_in(program.disk))
    assert contents(tree_in(program.disk))["a/last"] == b"new"
    assert len(contents(tree_in(program.disk))["a/log"]) == 12_000


def test_recorder_records_a_call_before_it_returns(tmp_path):
    with RecordedProgram(tmp_path, WRITE + "    sys.stdin.read()") as program:
        assert program.heard() == "100\n"
        assert program.kinds() == ["open", "write"]


def test_recorder_logs_begin_and_end_of_a_flush(run):
    program = run(
        """
    import time
    file = os.open(disk / "log", os.O_RDWR | os.O_CREAT)
    os.write(file, b"1")
    time.sleep = lambda _: os.write(file, b"2")  # which is what a slow flush does
    os.fdatasync(file)
        """,
        Rule("slow", "flush"),
    )
    assert program.kinds() == ["open", "write", "begin_flush", "write", "write", "end_flush"]
    assert left(program) == b"1"


def test_recorder_ignores_a_failed_call(run):
    program = run(
        """
    failing = (os.mkdir, "a/b"), (os.remove, "a"), (os.rmdir, "a"), (Path.read_bytes, "a")
    for call, path in failing:
        try:
            call(disk / path)
        except FileNotFoundError:
            print("failed")
        """
    )
    assert program.said == "failed\n" * 4
    assert program.calls() == []


@pytest.mark.parametrize(
    "past",
    [
        "(disk / 'x').write_bytes(b'x')",
        "open(disk / 'log', 'r+b').write(b'x')",
        "os.fdopen(file, 'wb').write(b'x')",
        "os.writev(file, [b'x'])",
        "os.pwritev(file, [b'x'], 0)",
        "os.copy_file_range(file, file, 1, 0, 1)",
        "os.dup(file)",
        "os.truncate(disk / 'log', 1)",
        "os.link(disk / 'log', disk / 'x')",
        "os.symlink(disk / 'log', disk / 'x')",
        "os.rename(disk / 'log', disk.parent / 'x')",
        "os.unlink('log', dir_fd=os.open(disk, os.O_RDONLY))",
    ],
)
def test_unrecorded_system_call_spoils_the_recording(run, past):
    program = run(
        f"""
    file = os.open(disk / "log", os.O_RDWR | os.O_CREAT)
    os.write(file, b"1")
    {past}
        """
    )
    with pytest.raises(Unseen, match="past the recorder"):
        program.model()


def test_descriptor_that_a_file_object_has_closed_may_be_used_again(run):
    """The system may give its number to the next file or socket."""
    program = run(
        """
    file = os.open(disk / "log", os.O_RDWR | os.O_CREAT)
    os.close(file)
    read = os.open(disk / "log", os.O_RDONLY)
    with os.fdopen(read, "rb") as content:
        content.read()
    other = os.open("/dev/null", os.O_WRONLY)
    assert other == read
    os.write(other, b"not to this disk")
    os.dup(other)
        """
    )
    assert program.model().find(PurePath("log")) is not None


# ---- injected faults


def test_recorder_records_a_short_write_with_its_length(run):
    program = run(WRITE, Rule("short", "write"))
    _, (_, _, _, data) = program.calls()
    assert 0 < len(data) < 100
    assert program.said == f"{len(data)}\n"
    assert (program.disk / "log").read_bytes() == data


def test_lie_rule_reports_a_short_write_as_whole(run):
    program = run(WRITE, Rule("lie", "write"))
    _, (_, _, _, data) = program.calls()
    assert 0 < len(data) < 100
    assert program.said == "100\n"


@pytest.mark.parametrize(
    "kind", ["open", "truncate", "write", "rename", "delete", "make_directory"]
)
def test_fail_rule_makes_a_call_fail(run, kind):
    program = run(EVERYTHING, Rule("fail", kind, error=errno.ENOSPC))
    assert program.code == 1
    assert kind not in program.kinds()
    assert contents(program.model().seen()) == contents(tree_in(program.disk))


def test_recorded_failed_flush_makes_nothing_durable(run):
    program = run(FLUSH, Rule("fail", "flush", "log", error=errno.EIO))
    assert program.code == 1
    assert program.kinds()[-2:] == ["begin_flush", "fail_flush"]
    assert left(program) == b""


def test_recorded_flush_makes_earlier_writes_durable(run):
    assert left(run(FLUSH)) == b"1"


def test_recorded_forgotten_flush_makes_nothing_durable(run):
    program = run(FLUSH, Rule("forget", "flush", "log"))
    assert program.kinds().count("end_flush") == 1
    assert left(program) == b""


def test_rule_with_a_slash_matches_directory_flushes(run):
    program = run(FLUSH, Rule("forget", "flush", "*/"))
    assert contents(next(states(program.model(), random.Random(1), 1))) == {}


def test_late_rule_delays_a_flush(run):
    program = run(FLUSH, Rule("late", "flush", "log", until="/"))
    assert program.code == -signal.SIGKILL
    assert program.kinds()[-2:] == ["begin_flush", "end_flush"]
    assert left(program) == b""


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    ("what", "kind", "recorded"),
    [("die", "write", 0), ("die behind", "write", 1), ("die behind", "flush", 1)],
)
def test_kill_rule_ends_the_process_before_or_after_a_call(run, what, kind, recorded, number):
    program = run(FLUSH, Rule(what, kind, number=number))
    assert program.code == -signal.SIGKILL
    name = {"flush": "end_flush"}.get(kind, kind)
    assert program.kinds().count(name) == number - 1 + recorded
    assert contents(program.model().seen()) == contents(tree_in(program.disk))


def test_full_rule_reports_a_full_disk(run):
    look = """
    for path in (disk, disk.parent):
        found = os.statvfs(path)
        print(found.f_bfree / found.f_blocks < 0.2)
    """
    assert run(look, Rule("full", "look", share=0.87)).said.splitlines()[0] == "True"
