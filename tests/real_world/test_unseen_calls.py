"""The recorder sees every disk operation of a broker, compared with the kernel's own list."""

import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from contextlib import closing
from pathlib import PurePath

import pytest
from real_world.campaign import WORK
from real_world.world import World
from system_calls.recording import Recording

RECORDED = {
    **dict.fromkeys(["open", "openat", "openat2", "creat"], "open"),
    **dict.fromkeys(["write", "pwrite64"], "write"),
    **dict.fromkeys(["ftruncate", "fallocate"], "truncate"),
    **dict.fromkeys(["fsync", "fdatasync"], "flush"),
    **dict.fromkeys(["rename", "renameat", "renameat2"], "rename"),
    **dict.fromkeys(["unlink", "unlinkat", "rmdir"], "delete"),
    **dict.fromkeys(["mkdir", "mkdirat"], "make_directory"),
}
HARMLESS = {
    *(
        "close",
        "fcntl",
        "flock",
        "fadvise64",
        "lseek",
        "read",
        "pread64",
        "getdents64",
        "access",
        "faccessat2",
    ),
    *(
        "stat",
        "lstat",
        "fstat",
        "newfstatat",
        "statx",
        "statfs",
        "fstatfs",
        "readlink",
        "readlinkat",
    ),
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
PATIENCE_SECONDS = 30

_CALL = re.compile(r"(\w+)\((.*)\) += (-?\w+)")
_PATH = re.compile(r'[<"](/[^">]*)[">]')


def can_trace():
    strace = shutil.which("strace")
    return (
        strace and subprocess.run([strace, "-o", os.devnull, "true"], check=False).returncode == 0
    )


def calls_of(line, disk):
    """Return the kind of a call that changes the disk, its file, and the bytes written."""
    if (call := _CALL.match(line)) is None or str(disk) not in line or call[3] == "-1":
        return
    name, arguments, result = call.groups()
    path = next(PurePath(path) for path in _PATH.findall(arguments) if path.startswith(str(disk)))
    about = path.relative_to(disk).name
    kind = RECORDED.get(name)
    if name == "mmap":
        assert "MAP_SHARED" not in arguments or "PROT_WRITE" not in arguments, line
    elif kind == "open":
        if any(flag in arguments for flag in ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC")):
            yield kind, about, 0
    elif kind is not None:
        yield kind, about, int(result) if kind == "write" else 0
    else:
        assert name in HARMLESS, f"the recorder knows nothing of this: {line}"


def calls_in(recording):
    """Return the same for the recorded calls."""
    names = {}
    for kind, *arguments in recording.new_calls():
        if kind == "open":
            handle, path, flags = arguments
            names[handle] = PurePath(path).name
            if flags & WRITING:
                yield kind, names[handle], 0
        elif kind == "write":
            yield kind, names[arguments[0]], len(arguments[2])
        elif kind == "truncate":
            yield kind, names[arguments[0]], 0
        elif kind == "begin_flush":
            yield "flush", names[arguments[1]], 0
        elif kind in {"rename", "delete", "make_directory"}:
            yield kind, PurePath(arguments[0]).name, 0


@pytest.mark.skipif(not can_trace(), reason="strace is not there, or may not trace")
def test_strace_sees_no_disk_call_that_is_not_recorded(tmp_path):
    tracer = (
        "strace",
        "-D",
        "-ff",
        "-y",
        "-s",
        "0",
        "-e",
        "trace=%file,%desc",
        "-o",
        f"{tmp_path}/calls",
    )
    world = World(tmp_path / "world", random.Random(1), WORK, tracer=tracer)
    try:
        world.start()
        world.go_on(1)
        world.end("stop")
    finally:
        world.close()
    until = time.monotonic() + PATIENCE_SECONDS
    while not all("+++ exited" in path.read_text() for path in tmp_path.glob("calls.*")):
        assert time.monotonic() < until, "strace does not come to an end"
    lines = [line for path in tmp_path.glob("calls.*") for line in path.read_text().splitlines()]
    traced = Counter(call for line in lines for call in calls_of(line, world.machine.disk))
    with closing(Recording(tmp_path / "world/life-1.recording")) as recording:
        recorded = Counter(calls_in(recording))
    assert traced == recorded
    assert {kind for kind, _, _ in traced} == set(RECORDED.values())
