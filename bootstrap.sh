#!/bin/sh
# Installs what `make` needs on a fresh Debian machine that has Python 3.10 or newer: make, and Python's
# venv module. Everything else goes into .venv. Where nothing is missing, it does nothing.
# Another Python than python3 is named by `export PYTHON=python3.12`: exported, so that make sees it too.
# Java 17 or newer, on which Spark runs, is found or installed likewise.
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

# The version of the Java that Spark would take: that of JAVA_HOME, or else of PATH; 0 if there is none.
java_version() {
    java=${JAVA_HOME:+$JAVA_HOME/bin/java}
    "${java:-java}" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1 | grep . || echo 0
}
has_java() { [ "$(java_version)" -ge 17 ]; }

if ! has_java; then
    if [ -n "${JAVA_HOME:-}" ]; then
        say "Spark needs Java 17 or newer; JAVA_HOME=$JAVA_HOME has $(java_version). Point it at a newer one, or unset it"
        exit 1
    fi
    missing="$missing JAVA"
fi

# Debian's releases differ in which Java they have. Some only name one that others replace: what would be installed counts.
java_package() {
    for java in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
        if apt-get install --simulate "$java" >/dev/null 2>&1; then break; fi
    done
    echo "$java"
}

if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        say "please install: $(printf '%s' "$missing" | sed 's/JAVA/Java 17 (a JRE)/')"
        exit 1
    fi
    as_root=
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null 2>&1; then
            list=$(printf '%s' "$missing" | sed "s/JAVA/$(java_package)/")
            say "please have an administrator run: apt-get install -y$list"
            exit 1
        fi
        as_root=sudo
    fi
    say "installing$missing"
    $as_root apt-get update -q >&2
    missing=$(printf '%s' "$missing" | sed "s/JAVA/$(java_package)/")
    # shellcheck disable=SC2086  # the list is meant to be split
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >&2
fi

if [ -n "${PYTHON:-}" ]; then
    # What was set for this script alone, make does not see.
    say "make takes the same Python when told so: export PYTHON='$PYTHON'"
fi
if [ "$(java_version)" -lt 17 ]; then
    say "the Java that was installed is $(java_version), and Spark needs 17 or newer: see https://adoptium.net"
    exit 1
fi
