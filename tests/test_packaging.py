"""What is installed: a wheel and an archive of the sources,
beside anything else that a user may have."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from bare_pythons import bare_python
from breadth import ends
from python_programs import ROOT

import rocketpoll

pytestmark = pytest.mark.deep

PATIENCE_SECONDS = 240
OURS = ("rocketpoll", "rmq_spark", "pyspark_rocketpoll.py")
NEEDED = (
    *("backports", "click", "lz4", "msgpack", "numpy", "orjson"),
    *("prometheus_client", "pyarrow", "rich", "uvloop", "yaml"),
)
HELLO = """
from rocketpoll import EmbeddedBroker, LitePullConsumer, Message, Producer
with EmbeddedBroker(own_process=%s) as broker:
    broker.create_topic("orders", 1)
    with Producer("shop", broker.address) as producer:
        producer.send(Message("orders", b"created"))
    print(*[message.body.decode() for message in broker.messages("orders")])
"""
TYPED = """
from rocketpoll import Admin, EmbeddedBroker, Message, Producer
from rocketpoll.errors import SendFailed

def send(producer: Producer) -> int:
    try:
        return producer.send(Message("orders", b"created")).queue_offset
    except SendFailed as error:
        raise SystemExit(str(error)) from error

with EmbeddedBroker() as broker, Producer("shop", broker.address) as ours:
    reveal_type(send(ours))
    reveal_type(broker.address)
"""


def run(*command, cwd):
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


def build(what, sources, directory):
    """Make a wheel or an sdist as pip does, with the setuptools that are here."""
    script = (
        "import sys; from setuptools import build_meta; "
        f"print(build_meta.build_{what}(sys.argv[1]))"
    )
    done = run(sys.executable, "-c", script, str(directory), cwd=sources)
    assert done.returncode == 0, done.stderr
    return directory / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the archive of the sources, as a release makes them."""
    directory = tmp_path_factory.mktemp("packaging")
    copy = directory / "sources"
    left_out = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
    return build("wheel", copy, directory), build("sdist", copy, directory)


@pytest.fixture
def site(built, tmp_path):
    """A newcomer's Python that has the wheel and what it needs."""
    python = bare_python(tmp_path / "venv", *NEEDED)
    [packages] = (tmp_path / "venv").glob("lib/python3*/site-packages")
    shutil.unpack_archive(built[0], packages, "zip")
    return python, packages


def test_the_wheel_has_our_names_and_no_others(built):
    names = zipfile.ZipFile(built[0]).namelist()
    [info] = {name.split("/")[0] for name in names if ".dist-info/" in name}
    assert {name.split("/")[0] for name in names} == {
        "rocketpoll",
        "rmq_spark",
        "pyspark_rocketpoll.py",
        info,
    }
    assert {
        "rocketpoll/py.typed",
        "rmq_spark/py.typed",
        "rocketpoll/aio.py",
        "rocketpoll/opentelemetry.py",
        "rocketpoll/broker/store/message_store.py",
        "rmq_spark/client/aio/consumer.py",
        "rmq_spark/cli/console/static/console.css",
        "rmq_spark/cli/console/static/console.js",
        "rmq_spark/cli/console/static/console.svg",
    } <= set(names)
    assert not [name for name in names if "tests" in name.split("/")]


def test_the_archive_of_the_sources_makes_the_same_wheel(built, tmp_path):
    with tarfile.open(built[1]) as archive:
        archive.extraction_filter = getattr(
            tarfile, "data_filter", None
        )  # Debian 12's Python has none
        archive.extractall(tmp_path)  # noqa: S202  # our own
    [sources] = tmp_path.iterdir()
    wheel = build("wheel", sources, tmp_path)
    assert sorted(zipfile.ZipFile(wheel).namelist()) == sorted(zipfile.ZipFile(built[0]).namelist())


@pytest.mark.parametrize(
    ("theirs", "own_process"),
    ends(itertools.product(("site-packages", "folder", "none"), (False, True))),
)
def test_another_broker_changes_nothing(site, tmp_path, theirs, own_process):
    """As a distribution of that name, which would have overwritten ours,
    and as a file beside the program."""
    python, packages = site
    if theirs == "site-packages":
        (packages / "broker").mkdir()
        (packages / "broker" / "__init__.py").write_text(
            "raise RuntimeError('theirs')\n", encoding="utf-8"
        )
    elif theirs == "folder":
        (tmp_path / "broker.py").write_text("raise RuntimeError('theirs')\n", encoding="utf-8")
    (tmp_path / "hello.py").write_text(HELLO % own_process, encoding="utf-8")
    done = run(python, "hello.py", cwd=tmp_path)
    assert done.stdout == "created\n", done.stderr


def test_the_command_line_runs_without_a_script(site, tmp_path):
    python, _ = site
    said = run(python, "-m", "rocketpoll", "broker", "-p", cwd=tmp_path)
    assert "listenPort=9876" in said.stdout.splitlines(), said.stderr
    assert run(python, "-m", "rocketpoll", "--version", cwd=tmp_path).stdout.startswith(
        "rocketpoll "
    )


@pytest.mark.parametrize("installed", ["editable", pytest.param("wheel", marks=pytest.mark.wide)])
def test_a_users_project_is_checked_strictly(site, tmp_path, installed):
    """Types reach the user by whichever way it is installed; ours here is the editable one."""
    (tmp_path / "shop.py").write_text(TYPED, encoding="utf-8")
    python = site[0] if installed == "wheel" else sys.executable
    done = run(
        *(sys.executable, "-m", "mypy", "--strict", "--python-executable", python),
        *("--cache-dir", str(tmp_path / "cache"), "shop.py"),
        cwd=tmp_path,
    )
    assert "error" not in done.stdout, done.stdout
    assert re.findall(r'type is "(?:builtins\.)?(\w+)"', done.stdout) == ["int", "str"]


def test_there_is_one_version():
    [stated] = re.findall(
        r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE
    )
    assert rocketpoll.__version__ == stated
