"""C libraries that the next started processes preload."""

import shutil
import subprocess

import pytest


def preload(directory, monkeypatch, source):
    """Compile a library into a directory and preload it; skip the test if there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a system call fail with")
    written, library = directory / "preloaded.c", directory / "preloaded.so"
    written.write_text(source)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, written, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))


KILL_AT_A_CHANGE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_ours(const char *path) {
    const char *root = getenv("KILL_BELOW");
    return root && path && strncmp(path, root, strlen(root)) == 0;
}

static void step(void) {
    static int count = 0;
    if (__sync_add_and_fetch(&count, 1) == atoi(getenv("KILL_AT")))
        kill(getpid(), SIGKILL);
}

static int is_fd(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_ours(path);
}

#define NEXT(name, kind) kind = dlsym(RTLD_NEXT, name)

int open64(const char *path, int flags, ...) {
    int NEXT("open64", (*next)(const char *, int, ...));
    va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest);
    if ((flags & O_CREAT) && is_ours(path)) step();
    return next(path, flags, mode);
}
ssize_t write(int fd, const void *data, size_t size) {
    ssize_t NEXT("write", (*next)(int, const void *, size_t));
    if (is_fd(fd)) step();
    return next(fd, data, size);
}
int rename(const char *from, const char *to) {
    int NEXT("rename", (*next)(const char *, const char *));
    if (is_ours(to)) step();
    return next(from, to);
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
    int NEXT("linkat", (*next)(int, const char *, int, const char *, int));
    if (is_ours(to)) step();
    return next(a, from, b, to, flags);
}
int unlink(const char *path) {
    int NEXT("unlink", (*next)(const char *));
    if (is_ours(path)) step();
    return next(path);
}
"""
"""A library that kills its process before a given change of files below a directory."""


def kill_variables(directory, change):
    """Return the environment variables that kill a process before its n-th change below a
    directory.

    Changes are counted from 1, so 0 kills none.
    """
    return {"KILL_BELOW": str(directory), "KILL_AT": str(change)}
