"""A wheel and a source archive install and work next to other packages."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
import setuptools
from support.programs.python_programs import ROOT, bare_python

import rocketpoll

pytestmark = pytest.mark.deep

PATIENCE_SECONDS = 240
NEEDED = (
    *("backports", "click", "lz4", "msgpack", "numpy", "orjson"),
    *("prometheus_client", "pyarrow", "rich", "uvloop", "yaml"),
)
PYTEST = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
if sys.version_info < (3, 11):
    PYTEST = (*PYTEST, "exceptiongroup", "tomli")
SETUPTOOLS = ("setuptools", "_distutils_hack")
REPOSITORY = "https://example.org/team/rocketpoll"
HELLO = """
from rocketpoll import EmbeddedBroker, LitePullConsumer, Message, Producer
with EmbeddedBroker(own_process=%s) as broker:
    broker.create_topic("orders", 1)
    with Producer("shop", broker.address) as producer:
        producer.send(Message("orders", b"created"))
    print(*[message.body.decode() for message in broker.messages("orders")])
"""
USES_THE_PLUGIN = """
import rocketpoll

def test_an_order_arrives(rocketpoll_broker, rocketpoll_topic):
    rocketpoll_broker.send(rocketpoll_topic, "created")
    assert [each.body for each in rocketpoll_broker.messages(rocketpoll_topic)] == [b"created"]
"""
AS_SPARK_SEARCHES = """
import importlib, pkgutil
found = [each.name for each in pkgutil.iter_modules() if each.name.startswith("pyspark_")]
print(*(f"{name} {importlib.import_module(name).DefaultSource.name()}" for name in found))
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


def pip(python, *arguments):
    """Return a function that installs into another Python with this one's pip, without an index."""
    offline = ("--no-index", "--no-deps") if arguments[0] == "install" else ("--yes",)
    done = run(
        *(sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"),
        *(arguments[0], "--quiet", *offline, *map(str, arguments[1:])),
        cwd=Path(python).parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def build(what, sources, directory):
    """Build a wheel or an sdist as pip does, with the installed setuptools."""
    script = (
        "import sys; from setuptools import build_meta; "
        f"print(build_meta.build_{what}(sys.argv[1]))"
    )
    done = run(sys.executable, "-c", script, str(directory), cwd=sources)
    assert done.returncode == 0, done.stderr
    return directory / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the wheel and the source archive, as a release makes them."""
    directory = tmp_path_factory.mktemp("packaging")
    copy = copied(directory / "sources")
    return build("wheel", copy, directory), build("sdist", copy, directory)


def copied(directory):
    """Copy the sources that a build needs."""
    left_out = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, directory, symlinks=True, ignore=left_out)
    return directory


@pytest.fixture
def newcomer(tmp_path):
    """Return a Python with the dependencies of the wheel, and without the wheel."""
    return bare_python(tmp_path / "venv", *NEEDED)


@pytest.fixture
def site(built, newcomer):
    """Return that Python after pip has installed the wheel."""
    pip(newcomer, "install", built[0])
    return newcomer


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Return the wheel of another distribution called broker, which owns that name."""
    directory = tmp_path_factory.mktemp("theirs")
    (directory / "broker").mkdir()
    (directory / "broker" / "__init__.py").write_text("NAME = 'theirs'\n", encoding="utf-8")
    (directory / "setup.cfg").write_text(
        "[metadata]\nname = broker\nversion = 0.8.11\n[options]\npackages = broker\n",
        encoding="utf-8",
    )
    return build("wheel", directory, directory)


def metadata_of(wheel):
    """Return the metadata that a package index gets; the payload is the description."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return HeaderParser().parsestr(archive.read(name).decode())


def test_package_index_can_show_wheel_and_sdist(built):
    done = run(sys.executable, "-m", "twine", "check", "--strict", *map(str, built), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_wheel_contains_our_packages_only(built):
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


def test_source_archive_builds_the_same_wheel(built, tmp_path):
    with tarfile.open(built[1]) as archive:
        archive.extraction_filter = getattr(
            tarfile, "data_filter", None
        )  # missing in Debian 12's Python
        archive.extractall(tmp_path)  # noqa: S202  # our own archive
    [sources] = tmp_path.iterdir()
    wheel = build("wheel", sources, tmp_path)
    assert sorted(zipfile.ZipFile(wheel).namelist()) == sorted(zipfile.ZipFile(built[0]).namelist())


def says_hello(python, directory, own_process=False):
    (directory / "hello.py").write_text(HELLO % own_process, encoding="utf-8")
    done = run(python, "hello.py", cwd=directory)
    assert done.stdout == "created\n", done.stderr


@pytest.mark.parametrize("own_process", [False, True])
def test_foreign_broker_module_beside_the_program_is_ignored(site, tmp_path, own_process):
    (tmp_path / "broker.py").write_text("raise RuntimeError('theirs')\n", encoding="utf-8")
    says_hello(site, tmp_path, own_process)


@pytest.mark.parametrize("order", ["theirs ours", "ours theirs", "ours theirs uninstalled"])
def test_distribution_named_broker_and_ours_coexist(built, theirs, newcomer, tmp_path, order):
    for step in order.split():
        if step == "uninstalled":
            pip(newcomer, "uninstall", "broker")
        else:
            pip(newcomer, "install", theirs if step == "theirs" else built[0])
    says_hello(newcomer, tmp_path, own_process=True)
    said = run(newcomer, "-c", "import broker; print(broker.NAME)", cwd=tmp_path)
    if "uninstalled" in order:
        assert "No module named 'broker'" in said.stderr
    else:
        assert said.stdout == "theirs\n", said.stderr
        pip(newcomer, "uninstall", "rocketpoll")
        assert run(newcomer, "-c", "import broker", cwd=tmp_path).returncode == 0


def test_editable_install_follows_its_sources(tmp_path):
    """A plain ``pip install -e .``, here with the setuptools of the tests."""
    python = bare_python(tmp_path / "venv", *NEEDED, *SETUPTOOLS, "pyspark", "py4j")
    [packages] = (tmp_path / "venv").glob("lib/python3*/site-packages")
    [info] = Path(setuptools.__file__).parent.parent.glob("setuptools-*.dist-info")
    (packages / info.name).symlink_to(info)  # its commands are found by this name
    clone = copied(tmp_path / "clone")
    pip(python, "install", "--no-build-isolation", "--editable", clone)
    away = tmp_path / "away"
    away.mkdir()
    says_hello(python, away)
    with (clone / "rocketpoll" / "errors.py").open("a", encoding="utf-8") as file:
        file.write("NEW = 'seen at once'\n")
    said = run(python, "-c", "import rocketpoll.errors as new; print(new.NEW)", cwd=away)
    assert said.stdout == "seen at once\n", said.stderr
    assert run(python, "-c", AS_SPARK_SEARCHES, cwd=away).stdout.endswith(
        "pyspark_rocketpoll rocketpoll\n"
    )


def test_spark_finds_the_source_that_pip_has_installed(built, tmp_path):
    """Spark searches modules by itself; nothing is registered."""
    python = bare_python(tmp_path / "venv", *NEEDED, "pyspark", "py4j")
    pip(python, "install", built[0])
    said = run(python, "-c", AS_SPARK_SEARCHES, cwd=tmp_path)
    assert said.stdout == "pyspark_rocketpoll rocketpoll\n", said.stderr


def test_pytest_finds_the_plugin_that_pip_has_installed(built, tmp_path):
    python = bare_python(tmp_path / "venv", *NEEDED, *PYTEST)
    pip(python, "install", built[0])
    (tmp_path / "test_orders.py").write_text(USES_THE_PLUGIN, encoding="utf-8")
    done = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_package_metadata_has_working_links_or_none(built, tmp_path):
    """With the address that the releaser sets, and without one."""
    without = metadata_of(built[0])
    assert without["Project-URL"] is None
    assert without["Description-Content-Type"] == "text/markdown"
    assert "](docs/" not in without.get_payload()
    assert "first steps, all pages by what you want to do" in without.get_payload()

    sources = copied(tmp_path / "sources")
    stated = (sources / "pyproject.toml").read_text("utf-8")
    assert stated.count('\nrepository = ""\n') == 1
    stated = stated.replace('\nrepository = ""\n', f'\nrepository = "{REPOSITORY}"\n')
    stated = re.sub(r'^version = ".*"$', 'version = "7.8.9"', stated, flags=re.MULTILINE)
    (sources / "pyproject.toml").write_text(stated, encoding="utf-8")
    released = metadata_of(build("wheel", sources, tmp_path))
    assert f"Repository, {REPOSITORY}" in released.get_all("Project-URL")
    assert f"Changelog, {REPOSITORY}/blob/HEAD/CHANGELOG.md" in released.get_all("Project-URL")
    links = re.findall(r"(!?)\[[^\]]+\]\(([^)]+)\)", released.get_payload())
    paths = [(picture, to.removeprefix(f"{REPOSITORY}/")) for picture, to in links]
    assert ("!", "raw/v7.8.9/docs/demo.svg") in paths
    assert ("", "blob/v7.8.9/docs/README.md") in paths
    files = [path.partition("#")[0].split("/", 2)[2] for _, path in paths]
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_command_line_runs_as_a_module_without_a_script(site, tmp_path):
    said = run(site, "-m", "rocketpoll", "broker", "-p", cwd=tmp_path)
    assert "listenPort=9876" in said.stdout.splitlines(), said.stderr
    assert run(site, "-m", "rocketpoll", "--version", cwd=tmp_path).stdout.startswith("rocketpoll ")


@pytest.mark.parametrize("installed", ["editable", "wheel"])
def test_users_project_is_type_checked_strictly(site, tmp_path, installed):
    """Types reach the user by either way of installation; here ours is editable."""
    (tmp_path / "shop.py").write_text(TYPED, encoding="utf-8")
    python = site if installed == "wheel" else sys.executable
    done = run(
        *(sys.executable, "-m", "mypy", "--strict", "--python-executable", python),
        *("--cache-dir", str(tmp_path / "cache"), "shop.py"),
        cwd=tmp_path,
    )
    assert "error" not in done.stdout, done.stdout
    assert re.findall(r'type is "(?:builtins\.)?(\w+)"', done.stdout) == ["int", "str"]


def test_package_version_equals_pyproject():
    [stated] = re.findall(
        r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE
    )
    assert rocketpoll.__version__ == stated
