"""A pytest plugin that removes the names of Python's library that macOS or Windows do not have.

    ROCKETPOLL_PLATFORM=darwin pytest -p support.suite.other_platforms FILES

The names are those that typeshed lists for Linux alone, as far as anything near the product uses
them. It shows what fails for lack of a name; it does not show what the systems do differently.
"""

import asyncio  # noqa: F401  # imported with all names still present
import errno
import fcntl
import os
import select
import selectors
import signal
import socket
import ssl  # noqa: F401  # imported with all names still present
import subprocess  # noqa: F401  # imported with all names still present
import sys
import time

PLATFORM = os.environ.get("ROCKETPOLL_PLATFORM")
LINUX_ONLY = {
    os: "fdatasync posix_fallocate posix_fadvise preadv pwritev pipe2 copy_file_range splice "
    "memfd_create eventfd pidfd_open sched_getaffinity sched_setaffinity setns unshare getrandom "
    "O_PATH O_DIRECT O_NOATIME O_RSYNC O_LARGEFILE",
    select: "epoll EPOLLIN EPOLLOUT EPOLLERR EPOLLHUP EPOLLET EPOLLONESHOT POLLRDHUP",
    socket: "SOCK_CLOEXEC SOCK_NONBLOCK TCP_KEEPIDLE TCP_USER_TIMEOUT TCP_QUICKACK TCP_CORK "
    "TCP_INFO TCP_DEFER_ACCEPT TCP_LINGER2 SO_PEERCRED SO_INCOMING_CPU MSG_CMSG_CLOEXEC",
    errno: "EUCLEAN EBADE ENOTUNIQ EREMCHG",
    time: "pthread_getcpuclockid CLOCK_BOOTTIME CLOCK_TAI",
}
UNIX_ONLY = {
    os: "register_at_fork fork forkpty getuid geteuid getgid getegid chown fchmod fchown "
    "killpg getpgid setsid openpty pread pwrite sysconf uname statvfs O_CLOEXEC O_DIRECTORY "
    "O_NOFOLLOW O_NONBLOCK SEEK_DATA SEEK_HOLE",
    select: "poll POLLIN POLLOUT POLLHUP POLLERR",
    socket: "AF_UNIX socketpair",
    signal: "SIGHUP SIGKILL SIGSTOP SIGCONT SIGQUIT SIGALRM SIGUSR1 SIGUSR2 pthread_sigmask "
    "SIG_BLOCK SIG_UNBLOCK setitimer",
}
UNIX_MODULES = ("fcntl", "termios", "resource", "pwd", "grp", "tty", "pty")
_FULL_FLUSH = 51


def _take_away(names_by_module):
    for module, names in names_by_module.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)


def _refuse_proc(event, arguments):
    if event in ("open", "os.listdir") and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(arguments[0]))


def become_darwin():
    """Remove names that macOS lacks, and add its constant to flush a file."""
    system_call, flush = fcntl.fcntl, os.fsync

    def flushing(descriptor, command, *arguments):
        return (
            flush(descriptor)
            if command == _FULL_FLUSH
            else system_call(descriptor, command, *arguments)
        )

    _take_away(LINUX_ONLY)
    del selectors.EpollSelector
    selectors.DefaultSelector = selectors.PollSelector
    fcntl.fcntl, fcntl.F_FULLFSYNC = flushing, _FULL_FLUSH
    sys.addaudithook(_refuse_proc)
    sys.platform = "darwin"


def become_windows():
    """Remove names and modules that Windows lacks."""
    _take_away(LINUX_ONLY)
    _take_away(UNIX_ONLY)
    del selectors.EpollSelector, selectors.PollSelector
    selectors.DefaultSelector = selectors.SelectSelector
    for name in UNIX_MODULES:
        sys.modules[name] = None
    sys.addaudithook(_refuse_proc)
    sys.platform = "win32"


if PLATFORM == "darwin":
    become_darwin()
