"""Runs the README's commands word for word in new bare Debian roots: `make fresh`.

    python3 tests/support/programs/fresh_debian.py --releases bookworm --also 'make lint'
    python3 tests/support/programs/fresh_debian.py --wheel dist/rocketpoll-1.2.3-py3-none-any.whl

A root has Debian's smallest set of packages and its python3. build/fresh keeps `bare` for each
release, as debootstrap made it, and logs; `downloads` has what apt and pip have fetched. Each run
creates `root`, a copy of `bare` with the committed tree, which is kept if a command fails. With a
wheel there is no tree: pip installs the wheel, and the demo runs from that (`make release`). All
mounts are made in a mount namespace of the command's own, and end with it. A command has TERM=dumb
and an empty /dev/pts, as in many containers and build jobs; one that needs pseudo-terminals mounts
them with `mount -t devpts -o ptmxmode=666 devpts /dev/pts`. The root gets this machine's access to
mirrors and registries: apt's mirror and proxies, pip's settings, certificates.
"""

import argparse
import configparser
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from pathlib import Path

CLONE = Path(__file__).resolve().parents[3]
RELEASES = ("bookworm", "trixie")
TREE = "/root/rocketpoll"
# the same lines as Debian's installer writes
HOSTS = "127.0.0.1 localhost\n127.0.1.1 debian\n::1 localhost ip6-localhost\n"
CERTIFICATES = "/etc/certificates-of-the-host.pem"
LAST_LINES = 60

# Text that a command's output contains if it did its work; its exit code may be 0 even if it did
# nothing.
SHOWN = {
    "demo": re.compile(r"read [1-9][\d,]* rows in .*: every one of them once"),
    "check": re.compile(r"[1-9]\d* passed"),
}

# The command of a user who has a wheel and no clone.
WHEEL_COMMAND = (
    "apt-get update -q && apt-get install -y -q --no-install-recommends python3-venv "
    "default-jre-headless && python3 -m venv /root/venv && /root/venv/bin/pip install -q "
    "'./{wheel}[spark]' && cd / && /root/venv/bin/rocketpoll demo"
)

# Runs the command in its own namespaces, but not as process 1, which ignores signals.
IN_NAMESPACES = """
set -e
root=$1; shift
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
if [ -d "$root/dev/pts" ]; then mount -t tmpfs tmpfs "$root/dev/pts"; fi
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
while [ "$1" != -- ]; do
    mkdir -p "$(dirname "$root$2")"
    if [ -d "$1" ]; then mkdir -p "$root$2"; else touch "$root$2"; fi
    mount --bind "$1" "$root$2"
    shift 2
done
shift
chroot "$root" hostname debian
chroot "$root" /usr/bin/env -i "$@"
exit 0
"""

_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_OF_BOOTSTRAP = re.compile(r"sh bootstrap\.sh && make ([a-z]+)\n")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_APT_WAYS = re.compile(r"Acquire::(?:https?|Check-|Retries|ForceIPv)[^ ]* \"[^\"]+\";")


class NoRoot(Exception):
    """Raised with the reason why this machine cannot create a root."""


class CommandFailed(Exception):
    """A command has failed."""


def readme_commands(readme):
    """Return the README's setup commands by their make target."""
    blocks = _BLOCK.findall(readme)
    return {
        found[1]: block.strip() for block in blocks if (found := _OF_BOOTSTRAP.fullmatch(block))
    }


def chosen(commands, names):
    """Return the commands with these names, in order."""
    unknown = [name for name in names if name not in commands]
    if unknown:
        raise SystemExit(
            f"fresh: the README has no command {', '.join(unknown)}; it has {', '.join(commands)}"
        )
    return {name: commands[name] for name in names}


def last_lines(output, count=LAST_LINES):
    """Return the last lines of a terminal's output, without escapes and overwritten text."""
    lines = _ESCAPES.sub("", output.replace("\r\n", "\n")).split("\n")
    return [line.rpartition("\r")[2].rstrip() for line in lines if line.strip()][-count:]


def debian_mirror(uris):
    """Return the Debian mirror in apt's configuration; None for debootstrap's default."""
    return next((uri for uri in uris if uri.rstrip("/").endswith("/debian")), None)


def apt_ways(dump):
    """Return apt's settings of proxies, certificates and checks, without those of lists
    and caches."""
    return [
        line for line in dump.splitlines() if _APT_WAYS.fullmatch(line) and "CaInfo" not in line
    ]


def pip_settings(environment, home):
    """Return pip's registry settings: variables, and binds of the files that they or pip's
    configuration files name."""
    variables = {name: value for name, value in environment.items() if name.startswith("PIP_")}
    binds = {
        value: value
        for value in variables.values()
        if Path(value).is_absolute() and Path(value).exists()
    }
    own = {str(home / at): f"/root/{at}" for at in (".config/pip/pip.conf", ".pip/pip.conf")}
    files = {
        path: inside
        for path, inside in {"/etc/pip.conf": "/etc/pip.conf", **own}.items()
        if Path(path).is_file()
    }
    named = (
        environment.get(name)
        for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    )
    configuration = configparser.RawConfigParser()
    configuration.read([*files, variables.get("PIP_CONFIG_FILE", os.devnull)])
    bundles = [*named, configuration.get("global", "cert", fallback=None)]
    bundle = next((name for name in bundles if name and Path(name).is_file()), None)
    if bundle is not None:  # Debian's packages install it there
        binds.pop(bundle, None)
        binds[bundle] = CERTIFICATES
        variables["PIP_CERT"] = CERTIFICATES
    return variables, {**files, **binds}


def proxies(environment):
    """Return the environment variables that name proxies."""
    return {name: value for name, value in environment.items() if name.lower().endswith("_proxy")}


def say(text):
    sys.stdout.write(f"fresh: {text}\n")
    sys.stdout.flush()


def program(name):
    """Return the path of a required program."""
    path = shutil.which(name)
    if path is None:
        raise NoRoot(f"{name} is missing: apt-get install -y debootstrap util-linux git")
    return path


def output_of(*command):
    """Return a program's output; empty if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def namespaces():
    """Return the command prefix that creates namespaces for mounts, processes and the host name."""
    return [program("unshare"), "--mount", "--pid", "--uts", "--fork", "--kill-child"]


def check_this_machine():
    """Install debootstrap if only that is missing; otherwise raise `NoRoot`."""
    if os.geteuid() != 0:
        raise NoRoot("root rights are needed")
    probe = subprocess.run(
        [*namespaces(), program("mount"), "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode != 0:
        raise NoRoot(f"no namespace with mounts of its own: {probe.stderr.strip()}")
    if shutil.which("debootstrap") is None and shutil.which("apt-get") is not None:
        say("installing debootstrap")
        apt_get = [program("apt-get"), "-q"]
        for action in (["update"], ["install", "-y", "--no-install-recommends", "debootstrap"]):
            subprocess.run(
                [*apt_get, *action],
                stdout=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
                check=False,
            )
    program("debootstrap")
    try:
        for each in pty.openpty():
            os.close(each)
    except OSError as error:
        raise NoRoot(f"no pseudo-terminal to show a command's output on: {error}") from error


def make_bare(release, bare):
    """Create a root with Debian's smallest package set and python3; all runs share it."""
    if bare.exists():
        return
    say(f"{release}: making its root")
    part = bare.with_name("bare.part")
    remove(part)
    mirror = debian_mirror(output_of("apt-get", "indextargets", "--format", "$(REPO_URI)").split())
    ways = dict(re.findall(r'Acquire::(https?)::Proxy "([^"]+)";', output_of("apt-config", "dump")))
    done = subprocess.run(
        [
            *namespaces(),
            program("debootstrap"),
            "--variant=minbase",
            "--include=python3",
            release,
            part,
            *filter(None, [mirror]),
        ],
        env={**{f"{scheme}_proxy": proxy for scheme, proxy in ways.items()}, **os.environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NoRoot(f"debootstrap made no {release}: {' / '.join(last_lines(done.stdout, 3))}")
    part.rename(bare)


def put_tree(tree):
    """Copy the committed tree."""
    git = [program("git"), "-c", "safe.directory=*", "-C", CLONE]
    with subprocess.Popen([*git, "archive", "HEAD"], stdout=subprocess.PIPE) as archive:
        subprocess.run([program("tar"), "-x", "-C", tree], stdin=archive.stdout, check=True)
    if archive.returncode != 0:
        raise NoRoot("git archive failed: this is no clone, or has no commit")


def make_root(bare, root, wheel):
    """Create a root with the committed tree or a wheel, and with this machine's access
    to mirrors."""
    remove(root)
    subprocess.run([program("cp"), "--archive", "--reflink=auto", bare, root], check=True)
    tree = root / TREE[1:]
    tree.mkdir()
    if wheel is None:
        put_tree(tree)
    else:
        shutil.copy(wheel, tree)
    shutil.copyfile("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "etc/hosts").write_text(HOSTS, encoding="utf-8")
    ways = apt_ways(output_of("apt-config", "dump"))
    if CERTIFICATES in pip_settings(os.environ, Path.home())[1].values():
        ways.append(f'Acquire::https::CaInfo "{CERTIFICATES}";')
    (root / "etc/apt/apt.conf.d/99of-the-host").write_text(
        "".join(f"{way}\n" for way in ways), encoding="utf-8"
    )
    authorities = Path("/usr/local/share/ca-certificates")
    if authorities.is_dir():
        shutil.copytree(authorities, root / authorities.relative_to("/"), dirs_exist_ok=True)


def remove(directory):
    """Remove a root, even if it is incomplete."""
    subprocess.run([program("rm"), "-rf", "--one-file-system", directory], check=True)


def in_root(root, downloads, command):
    """Return the command line that runs a command in a root, with the small environment of a build
    job."""
    variables, binds = pip_settings(os.environ, Path.home())
    binds = {
        downloads / "apt": "/var/cache/apt/archives",
        downloads / "pip": "/root/.cache/pip",
        **binds,
    }
    for kind in ("apt", "pip"):
        (downloads / kind).mkdir(parents=True, exist_ok=True)
    environment = {
        "HOME": "/root",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "TERM": "dumb",
        **proxies(os.environ),
        **variables,
    }
    return [
        *(*namespaces(), program("sh"), "-c", IN_NAMESPACES, "sh", str(root)),
        *(str(path) for bind in binds.items() for path in bind),
        *("--", "-C", TREE, *(f"{name}={value}" for name, value in environment.items())),
        *("/bin/sh", "-c", command),
    ]


def on_terminal(command, log, deadline):
    """Run a program on a terminal, with its output in a file; return its exit code, or None after a
    timeout."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with open(ours, "rb", buffering=0) as terminal, log.open("wb", buffering=0) as file:  # noqa: PTH123  # a descriptor
        process = subprocess.Popen(
            command, stdin=its, stdout=its, stderr=its, start_new_session=True
        )
        os.close(its)
        try:
            while (remaining := deadline - time.monotonic()) > 0:
                if not select.select([terminal], [], [], remaining)[0]:
                    continue
                try:
                    file.write(terminal.read(65_536))
                except OSError:  # the other side is closed
                    return process.wait()
            return None
        finally:
            process.kill()
            process.wait()


def run(name, command, log, start, deadline):
    """Run a command in a root; raise CommandFailed if it fails."""
    started_at = time.monotonic()
    code = on_terminal(start, log, deadline)
    seconds = time.monotonic() - started_at
    output = log.read_text(encoding="utf-8", errors="replace")
    ends = last_lines(output)
    why = f"exit code {code}" if code else "too little time" if code is None else ""
    if not why and name in SHOWN and not SHOWN[name].search(output):
        why = f"it has not shown '{SHOWN[name].pattern}'"
    if why:
        raise CommandFailed(
            "\n".join([*ends, f"{command}: {why}, after {seconds:.0f} s; all of it is in {log}"])
        )
    say(f"{command}: done in {seconds:.0f} s; its last line: {ends[-1] if ends else ''}")


@contextmanager
def alone(directory):
    """Lock a directory of roots against concurrent runs."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"fresh: another run uses {directory}") from None
        yield


def try_release(release, commands, home, deadline, wheel):
    """Run commands in order in one clone in a root of this release; return whether all
    succeeded."""
    directory = home / release
    root = directory / "root"
    make_bare(release, directory / "bare")
    make_root(directory / "bare", root, wheel)
    for name, command in commands.items():
        say(f"{release}: {command}")
        try:
            run(
                name,
                command,
                directory / f"{name}.log",
                in_root(root, home / "downloads", command),
                deadline,
            )
        except CommandFailed as failed:
            say(f"{release}: FAILED\n{failed}\n{root} is kept")
            return False
    remove(root)
    return True


def parsed(arguments):
    parser = argparse.ArgumentParser(
        description="Run the README's commands in bare Debian roots.", allow_abbrev=False
    )
    parser.add_argument("--releases", nargs="+", default=RELEASES, help="Debian's names for them")
    parser.add_argument(
        "--commands", nargs="*", default=[*SHOWN], help="targets of make in the README's commands"
    )
    parser.add_argument(
        "--also", default="", help="a command more, in the same clone, behind these"
    )
    parser.add_argument(
        "--wheel", type=Path, help="install this wheel and run its demo, without the tree"
    )
    parser.add_argument("--minutes", type=float, default=120, help="for all of it (120)")
    parser.add_argument(
        "--directory", type=Path, default=CLONE / "build" / "fresh", help="where roots are kept"
    )
    given = parser.parse_args(arguments)
    if given.wheel is not None and not given.wheel.is_file():
        parser.error(
            f"--wheel: there is no file {given.wheel}; `make release` builds it into dist/"
        )
    return given


def commands_of(given):
    """Parse the commands to run in each root."""
    if given.wheel is not None:
        commands = {"demo": WHEEL_COMMAND.format(wheel=given.wheel.name)}
    else:
        readme = (CLONE / "README.md").read_text(encoding="utf-8")
        commands = chosen(readme_commands(readme), given.commands)
    return {**commands, **({"also": given.also} if given.also else {})}


def main(arguments):
    given = parsed(arguments)
    commands = commands_of(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    deadline = time.monotonic() + 60 * given.minutes
    home = given.directory.resolve()
    try:
        check_this_machine()
        with alone(home):
            tried = [
                try_release(release, commands, home, deadline, given.wheel)
                for release in given.releases
            ]
        return 0 if all(tried) else 1
    except NoRoot as why:
        say(f"skipped: {why}")
        return 1 if os.environ.get("REQUIRE_FRESH") == "1" else 0
    except KeyboardInterrupt:
        say("interrupted; all that it had started has ended")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
