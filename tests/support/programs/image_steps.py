"""Runs the steps of deploy/Dockerfile in bare roots of Debian 13, and then the image: `make image`.

    PYTHONPATH=tests python3 -m support.programs.image_steps

A root has Debian 13 and its Python, which is 3.13, as in the image's base python:3.13-slim. The
image then runs as in deploy/compose.yaml: as its own user, on a read-only root, in a network of its
own. It has to become healthy, store a message, return it to a consumer, and stop cleanly. Roots and
downloads are kept as those of `make fresh`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from typing import NamedTuple

from support.programs.fresh_debian import (
    CLONE,
    TREE,
    CommandFailed,
    NoRoot,
    alone,
    check_this_machine,
    in_root,
    make_bare,
    make_root,
    program,
    remove,
    run,
    say,
)

RELEASE = "trixie"
DOCKERFILE = CLONE / "deploy" / "Dockerfile"
IGNORED = CLONE / ".dockerignore"
SECONDS_MAX = 900

BASE = (
    "apt-get update -q && apt-get install -y -q --no-install-recommends python3-venv && "
    "ln -s python3 /usr/bin/python"
)
"""Commands that turn a bare Debian into the Dockerfile's base image."""

RUNNER = """
import fcntl, json, os, signal, socket, struct, subprocess, sys, time
image = json.loads(sys.argv[1])
with socket.socket() as any_one:  # the network has nothing but its loopback, which is down
    fcntl.ioctl(any_one, 0x8914, struct.pack("16sh22x", b"lo", 1))
for words in (
    ["mount", "--rbind", "/", "/mnt"],
    ["mount", "-o", "remount,bind,ro", "/mnt"],
    ["mount", "--bind", image["volume"], "/mnt" + image["volume"]],
):
    subprocess.run(words, check=True)
os.chroot("/mnt")
os.chdir("/")
user = int(image["user"])
as_user = {"user": user, "group": user, "extra_groups": [], "env": image["env"], "cwd": "/"}
with subprocess.Popen([*image["entrypoint"], "brokerIP1=127.0.0.1"], **as_user) as broker:
    deadline = time.monotonic() + 60
    while subprocess.run(image["healthcheck"], stderr=subprocess.DEVNULL, **as_user).returncode:
        assert broker.poll() is None and time.monotonic() < deadline, "it does not become healthy"
        time.sleep(0.1)
    for line in (
        "rocketpoll topic create orders", "echo one | rocketpoll produce orders",
        "rocketpoll consume orders -f '%s\\\\n' | grep -qx one",
    ):
        subprocess.run(["/bin/sh", "-c", line], check=True, **as_user)
    broker.send_signal(signal.Signals[image["stopsignal"]])
    assert broker.wait(60) == 0, broker.returncode
print("healthy, has taken a message and given it out, and has ended in order")
"""


class Stage(NamedTuple):
    """A stage of a Dockerfile: its name, and its instructions with their arguments."""

    name: str
    steps: list[tuple[str, str]]


def stages(text):
    """Parse a Dockerfile into its stages."""
    found = []
    lines = "".join(line for line in text.splitlines(True) if not line.startswith("#"))
    for line in filter(None, lines.replace("\\\n", " ").splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append(Stage(rest.partition(" AS ")[2] or str(len(found)), []))
        else:
            found[-1].steps.append((word, rest.strip()))
    return found


def context(tree, ignored, directory):
    """Copy the build context of a tree: all files that .dockerignore admits."""
    __tracebackhide__ = True
    first, *rest = [line for line in ignored.splitlines() if line]
    assert first == "*", "all is left out but what is named"
    directory.mkdir()
    for line in rest:
        if line.startswith("!"):
            source = tree / line[1:]
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, directory / line[1:])
    return directory


def image_of(stage):
    """Return the stage's user, environment, working directory and command."""
    image = {"env": {}, "user": "0", "stopsignal": "SIGTERM"}
    for word, rest in stage.steps:
        if word == "ENV":
            image["env"] |= dict(each.split("=", 1) for each in shlex.split(rest))
        elif word in ("USER", "VOLUME", "STOPSIGNAL"):
            image[word.lower()] = rest
        elif word in ("HEALTHCHECK", "ENTRYPOINT"):
            image[word.lower()] = json.loads(re.search(r"\[.*\]", rest)[0])
    return image


def build(stage, root, earlier, command):
    """Run the steps of a stage that change its root, with ``command``."""
    for word, rest in stage.steps:
        if word == "RUN":
            command(rest)
        elif word == "COPY":
            *options, source, target = rest.split()
            inside = root / target[1:]
            inside.parent.mkdir(parents=True, exist_ok=True)
            if options:
                origin = earlier[options[0].removeprefix("--from=")]
                shutil.copytree(origin / source[1:], inside, symlinks=True)
            else:
                context(root / TREE[1:], IGNORED.read_text(encoding="utf-8"), inside)
        elif word not in (
            *("ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"),
        ):
            raise CommandFailed(f"{word} {rest}: this does not know how to take such a step")


def try_image(home):
    """Build all stages, and run the last one."""
    directory = home / RELEASE
    make_bare(RELEASE, directory / "bare")
    roots, deadline = {}, time.monotonic() + SECONDS_MAX
    for stage in stages(DOCKERFILE.read_text(encoding="utf-8")):
        root = roots[stage.name] = directory / f"image-{stage.name}"
        make_root(directory / "bare", root, None)

        def command(text, root=root, log=directory / f"image-{stage.name}.log"):
            start = in_root(root, home / "downloads", text)
            run("", text, log, start, deadline)

        command(BASE)
        build(stage, root, roots, command)
    remove(root / TREE[1:])
    (root / TREE[1:]).mkdir()
    (root / "run-image.py").write_text(RUNNER, encoding="utf-8")
    image = image_of(stage)
    image["env"]["PATH"] = image["env"]["PATH"].replace("$PATH", "/usr/bin:/bin")
    text = f"python3 /run-image.py {shlex.quote(json.dumps(image))}"
    start = in_root(root, home / "downloads", text)
    log = directory / "image-run.log"
    run("", "the image", log, [program("unshare"), "--net", *start], deadline)
    for root in roots.values():
        remove(root)


def main():
    home = CLONE / "build" / "fresh"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        check_this_machine()
        with alone(home):
            try_image(home)
    except NoRoot as why:
        say(f"skipped: {why}")
        return 1 if os.environ.get("REQUIRE_FRESH") == "1" else 0
    except CommandFailed as failed:
        say(f"FAILED\n{failed}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
