"""A FUSE file system that passes everything to a directory, with one deviation from normal disks.

    python fuse_disk.py ODDITY DIRECTORY MOUNT_POINT COMMAND...

mounts the directory through the kernel's FUSE and replaces itself by the command; the caller
provides a mount namespace. A child process serves the requests until the command ends. The
structures are those of `linux/fuse.h`.
"""
# paths are texts here, as the kernel gives them
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH116, PTH208

import ctypes
import errno
import os
import signal
import stat
import struct
import sys
from itertools import count
from pathlib import Path

ODDITIES = (
    "none",
    "inodes change",
    "directories are not flushed",
    "no locks",
    "times of two seconds",
    "holes are not told",
    "names without case",
)
_WRITE_MAX = 1 << 17
_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_ENTRY_HEAD = struct.Struct("<4Q2I")
_FLOCK_LOCKS, _POSIX_LOCKS, _BIG_WRITES, _ATOMIC_TRUNC = 1 << 10, 1 << 1, 1 << 5, 1 << 3
_SIZE, _ATIME, _MTIME, _MODE = 8, 16, 32, 1
_PR_SET_PDEATHSIG = 1


class FuseDisk:
    """The server of one mount."""

    def __init__(self, device, root, oddity):
        self._device = device
        self._oddity = oddity
        self._paths = {1: str(root)}
        self._nodes = {str(root): 1}
        self._numbers = count(2)
        self._files = {}
        self._handles = count(1)
        self._inodes = count(1_000)

    def serve(self):
        while True:
            try:
                request = os.read(self._device, _WRITE_MAX + (1 << 16))
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                raise
            _, code, unique, node, *_ = _IN.unpack_from(request)
            answer = self._answer(code, node, request[_IN.size :])
            if answer is not None:
                error, data = (answer, b"") if isinstance(answer, int) else (0, answer)
                head = _OUT.pack(_OUT.size + len(data), -error, unique)
                os.write(self._device, head + data)

    def _answer(self, code, node, body):
        name = _HANDLERS.get(code)
        if name is None:
            return errno.ENOSYS
        try:
            return getattr(self, name)(node, body)
        except OSError as error:
            return error.errno

    # ---- names

    def _lookup(self, node, body):
        return self._entry(self._below(node, body))

    def _entry(self, path):
        stats = os.lstat(path)
        if path not in self._nodes:
            self._nodes[path] = next(self._numbers)
            self._paths[self._nodes[path]] = path
        return _ENTRY_HEAD.pack(self._nodes[path], 0, 0, 0, 0, 0) + self._attr(stats)

    def _below(self, node, name):
        wanted, directory = name.partition(b"\0")[0].decode(), self._paths[node]
        if self._oddity == "names without case":
            there = {each.lower(): each for each in os.listdir(directory)}
            wanted = there.get(wanted.lower(), wanted)
        return f"{directory}/{wanted}"

    def _forget(self, *_):
        return None

    def _mkdir(self, node, body):
        (mode,) = struct.unpack_from("<I", body)
        path = self._below(node, body[8:])
        os.mkdir(path, mode)
        return self._entry(path)

    def _unlink(self, node, body):
        path = self._below(node, body)
        os.unlink(path)
        self._nodes.pop(path, None)
        return b""

    def _rmdir(self, node, body):
        path = self._below(node, body)
        os.rmdir(path)
        self._nodes.pop(path, None)
        return b""

    def _rename(self, node, body, head=8):
        (new_node,) = struct.unpack_from("<Q", body)
        old, new, *_ = body[head:].split(b"\0")
        path, new_path = self._below(node, old), self._below(new_node, new)
        os.rename(path, new_path)
        self._nodes.pop(new_path, None)
        for known in [each for each in self._nodes if f"{each}/".startswith(f"{path}/")]:
            moved = new_path + known[len(path) :]
            number = self._nodes.pop(known)
            self._nodes[moved], self._paths[number] = number, moved
        return b""

    def _rename2(self, node, body):
        return self._rename(node, body, 16)

    # ---- attributes

    def _attr(self, stats):
        number = next(self._inodes) if self._oddity == "inodes change" else stats.st_ino
        times = [stats.st_atime_ns, stats.st_mtime_ns, stats.st_ctime_ns]
        if self._oddity == "times of two seconds":
            times = [each // 2_000_000_000 * 2_000_000_000 for each in times]
        return _ATTR.pack(
            number,
            stats.st_size,
            stats.st_blocks,
            *(each // 1_000_000_000 for each in times),
            *(each % 1_000_000_000 for each in times),
            stats.st_mode,
            stats.st_nlink,
            stats.st_uid,
            stats.st_gid,
            0,
            4_096,
            0,
        )

    def _attributes(self, stats):
        return struct.pack("<QII", 0, 0, 0) + self._attr(stats)

    def _getattr(self, node, body):
        flags, _, handle = struct.unpack_from("<IIQ", body)
        if flags & 1 and handle in self._files:
            return self._attributes(os.fstat(self._files[handle]))
        return self._attributes(os.lstat(self._paths[node]))

    def _setattr(self, node, body):
        valid, _, handle, size, _, atime, mtime, _, a_ns, m_ns, _, mode = struct.unpack_from(
            "<2I6Q4I", body
        )
        file = self._files.get(handle) if valid & 64 else None
        target = self._paths[node] if file is None else file
        if valid & _SIZE:
            os.truncate(target, size)
        if valid & _MODE:
            os.chmod(target, stat.S_IMODE(mode))
        if valid & (_ATIME | _MTIME):
            times = (atime * 1_000_000_000 + a_ns, mtime * 1_000_000_000 + m_ns)
            os.utime(target, ns=times)
        return self._attributes(os.stat(target))

    def _statfs(self, *_):
        stats = os.statvfs(self._paths[1])
        return struct.pack(
            "<5Q4I24x",
            stats.f_blocks,
            stats.f_bfree,
            stats.f_bavail,
            stats.f_files,
            stats.f_ffree,
            stats.f_bsize,
            255,
            stats.f_frsize,
            0,
        )

    # ---- files

    def _opened(self, descriptor):
        handle = next(self._handles)
        self._files[handle] = descriptor
        return struct.pack("<QII", handle, 0, 0)

    def _open(self, node, body):
        (flags,) = struct.unpack_from("<I", body)
        return self._opened(os.open(self._paths[node], flags & ~(os.O_CREAT | os.O_EXCL)))

    def _create(self, node, body):
        flags, mode = struct.unpack_from("<II", body)
        path = self._below(node, body[16:])
        descriptor = os.open(path, flags | os.O_CREAT, mode)
        return self._entry(path) + self._opened(descriptor)

    def _read(self, _, body):
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(self._files[handle], size, offset)

    def _write(self, _, body):
        handle, offset, size = struct.unpack_from("<QQI", body)
        written = os.pwrite(self._files[handle], body[40 : 40 + size], offset)
        return struct.pack("<II", written, 0)

    def _release(self, _, body):
        (handle,) = struct.unpack_from("<Q", body)
        os.close(self._files.pop(handle))
        return b""

    def _fsync(self, _, body):
        (handle,) = struct.unpack_from("<Q", body)
        os.fsync(self._files[handle])
        return b""

    def _flush(self, *_):
        return b""

    def _lseek(self, _, body):
        if self._oddity == "holes are not told":
            return errno.ENOSYS
        handle, offset, whence = struct.unpack_from("<QQI", body)
        return struct.pack("<Q", os.lseek(self._files[handle], offset, whence))

    def _lock(self, *_):
        return errno.EOPNOTSUPP

    # ---- directories

    def _opendir(self, node, _):
        return self._opened(os.open(self._paths[node], os.O_RDONLY | os.O_DIRECTORY))

    def _readdir(self, node, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        found, data = [".", "..", *sorted(os.listdir(self._paths[node]))], b""
        for at, name in enumerate(found[offset:], offset + 1):
            text = name.encode()
            entry = struct.pack("<QQII", 1_000 + at, at, len(text), 0) + text
            entry += bytes(-len(entry) % 8)
            if len(data) + len(entry) > size:
                break
            data += entry
        return data

    def _fsyncdir(self, _, body):
        if self._oddity == "directories are not flushed":
            return errno.EINVAL
        return self._fsync(_, body)

    def _init(self, _, body):
        _, _, readahead, offered = struct.unpack_from("<4I", body)
        wanted = _BIG_WRITES | _ATOMIC_TRUNC
        if self._oddity == "no locks":
            wanted |= _FLOCK_LOCKS | _POSIX_LOCKS
        flags = wanted & offered
        return struct.pack("<4IHHII36x", 7, 31, readahead, flags, 16, 12, _WRITE_MAX, 1)


_HANDLERS = {
    1: "_lookup",
    2: "_forget",
    3: "_getattr",
    4: "_setattr",
    9: "_mkdir",
    10: "_unlink",
    11: "_rmdir",
    12: "_rename",
    14: "_open",
    15: "_read",
    16: "_write",
    17: "_statfs",
    18: "_release",
    20: "_fsync",
    25: "_flush",
    26: "_init",
    27: "_opendir",
    28: "_readdir",
    29: "_release",
    30: "_fsyncdir",
    31: "_lock",
    32: "_lock",
    33: "_lock",
    35: "_create",
    36: "_forget",
    42: "_forget",
    45: "_rename2",
    46: "_lseek",
}


def main(oddity, directory, mount_point, *command):
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if libc.mount(b"odd", mount_point.encode(), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), mount_point)
    if not os.fork():
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        FuseDisk(device, Path(directory), oddity).serve()
        os._exit(0)
    os.close(device)
    os.execvp(command[0], command)  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    main(*sys.argv[1:])
