"""The archive for Spark's workers contains all packages that they need."""

import subprocess
import sys
import zipfile

import pytest
from support.programs.python_programs import bare_python

from rmq_spark.cli.main import main

CLUSTER = ("numpy", "pyarrow", "orjson", "pyspark", "py4j")
"""Packages that the workers of a cluster already have."""

USE = """
import sys
from pyspark_rocketpoll import DefaultSource
assert ".zip" in sys.modules["rmq_spark"].__file__
import rmq_spark.spark.batch_reader, rmq_spark.spark.stream_reader, rmq_spark.wire.chunk
from rmq_spark.client.transport.remoting_client import RemotingClient
print(DefaultSource.name(), *sorted({"msgpack", "lz4", "backports", "uvloop"} & set(sys.modules)))
"""


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "dist" / "rocketpoll.zip"
    assert main(["archive", str(path)]) == 0
    return path


def test_archive_contains_source_and_client_but_no_broker(archive):
    names = zipfile.ZipFile(archive).namelist()
    assert {
        "pyspark_rocketpoll.py",
        "rocketpoll/__init__.py",
        "rmq_spark/spark/data_source.py",
        "rmq_spark/__init__.py",
    } <= set(names)
    assert not [name for name in names if {"cli", "broker"} & set(name.split("/"))]


def test_spark_archive_bytes_are_reproducible(archive, tmp_path, capsys):
    again = tmp_path / "again.zip"
    main(["archive", str(again)])
    assert (
        capsys.readouterr().out
        == f"PYTHONPATH={again} spark-submit --py-files {again} PROGRAM.py\n"
    )
    assert again.read_bytes() == archive.read_bytes()


def test_archive_works_with_numpy_pyarrow_and_orjson_only(archive, tmp_path):
    python = bare_python(tmp_path / "cluster", *CLUSTER)
    done = subprocess.run(
        [python, "-c", USE],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(archive)},
    )
    assert done.stdout.split() == ["rocketpoll"], done.stderr


def test_archive_command_prints_usage_and_leaves_no_partial_file(tmp_path, capsys):
    path = tmp_path / "far" / "away" / "rocketpoll.zip"
    assert main(["archive", str(path)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("PYTHONPATH=")
    far, away, wrote = said.err.splitlines()
    assert (far, away) == (
        f"created the directory {tmp_path / 'far'}",
        f"created the directory {tmp_path / 'far' / 'away'}",
    )
    assert wrote.startswith(f"wrote {path}, ")
    assert wrote.endswith("KiB")
    assert main(["archive", str(path)]) == 0
    assert capsys.readouterr().err == f"{wrote}\n"
    assert list(path.parent.iterdir()) == [path]


def test_archive_that_cannot_be_written_keeps_the_previous_one(tmp_path):
    path = tmp_path / "rocketpoll.zip"
    path.write_bytes(b"the last one")
    program = (
        "import resource, signal, sys\n"
        "from rmq_spark.cli.main import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, "archive", path],  # byte code would be truncated, too
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("rocketpoll archive: ")
    assert path.read_bytes() == b"the last one"
    assert list(tmp_path.iterdir()) == [path]


def test_archive_command_refuses_other_suffix_and_bad_directory(tmp_path, capsys):
    assert main(["archive", str(tmp_path / "rocketpoll.whl")]) == 2
    assert "does not end with .zip" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["archive", str(tmp_path / "file" / "rocketpoll.zip")]) == 1
    assert "rocketpoll archive: " in capsys.readouterr().err
