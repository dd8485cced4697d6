#!/bin/sh
# Installs what `make` needs on a fresh Debian machine that has Python 3.10 or newer: make, and Python's
# venv module. Everything else goes into .venv. Where nothing is missing, it does nothing.
# Another Python than python3 is named by `export PYTHON=python3.12`: exported, so that make sees it too.
# Java 17 and Maven are looked for, as the interop tests run RocketMQ's own classes; without them these
# tests are skipped, and this says so.
set -eu

say() { printf 'bootstrap: %s\n' "$*" >&2; }

python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null 2>&1; then
    say "Python 3.10 or newer is needed, and '$python' is not there; export PYTHON=its-name"
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    say "Python 3.10 or newer is needed; '$python' is $("$python" -V 2>&1). export PYTHON=a-newer-one"
    exit 1
fi

missing=
command -v make >/dev/null 2>&1 || missing="$missing make"
if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    if [ -z "${PYTHON:-}" ]; then
        missing="$missing python3-venv"
    else  # Debian has one package for each of its Pythons
        missing="$missing $("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    fi
fi

if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        say "please install:$missing"
        exit 1
    fi
    as_root=
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null 2>&1; then
            say "please have an administrator run: apt-get install -y$missing"
            exit 1
        fi
        as_root=sudo
    fi
    say "installing$missing"
    $as_root apt-get update -q >&2
    # shellcheck disable=SC2086  # the list is meant to be split
    $as_root apt-get install -y -q --no-install-recommends $missing >&2
fi

if [ -n "${PYTHON:-}" ]; then
    # What was set for this script alone, make does not see.
    say "make takes the same Python when told so: export PYTHON='$PYTHON'"
fi
if command -v javac >/dev/null 2>&1 && command -v mvn >/dev/null 2>&1; then
    exit 0
fi
say "Java 17 or Maven is missing: the interop tests will be skipped."
say "To run them as well: apt-get install -y openjdk-17-jdk-headless maven"
