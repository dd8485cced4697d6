"""The archive for Spark's workers: what is in it, and that it is enough."""

from __future__ import annotations

import subprocess
import zipfile

import pytest
from bare_pythons import bare_python

from rmq_spark.cli.main import main

CLUSTER = ("numpy", "pyarrow", "orjson", "pyspark", "py4j")
"""What the workers of a cluster have besides."""

USE = """
import sys
from pyspark_rocketpoll import DefaultSource
assert ".zip" in sys.modules["rmq_spark"].__file__
import rmq_spark.spark.batch_reader, rmq_spark.spark.stream_reader, rmq_spark.wire.chunk
from rmq_spark.client.connections.connections import Connections
print(DefaultSource.name(), *sorted({"msgpack", "lz4", "backports", "uvloop"} & set(sys.modules)))
"""


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "dist" / "rocketpoll.zip"
    assert main(["archive", str(path)]) == 0
    return path


def test_it_holds_the_source_and_the_client_and_no_broker(archive):
    names = zipfile.ZipFile(archive).namelist()
    assert {
        "pyspark_rocketpoll.py",
        "rocketpoll/__init__.py",
        "rmq_spark/spark/source.py",
        "rmq_spark/__init__.py",
    } <= set(names)
    assert not [name for name in names if {"cli", "broker"} & set(name.split("/"))]


def test_the_same_modules_give_the_same_bytes(archive, tmp_path, capsys):
    again = tmp_path / "again.zip"
    main(["archive", str(again)])
    assert (
        capsys.readouterr().out
        == f"PYTHONPATH={again} spark-submit --py-files {again} PROGRAM.py\n"
    )
    assert again.read_bytes() == archive.read_bytes()


def test_it_works_where_only_numpy_pyarrow_and_orjson_are(archive, tmp_path):
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


def test_other_names_and_places_are_refused(tmp_path, capsys):
    assert main(["archive", str(tmp_path / "rocketpoll.whl")]) == 2
    assert "has to end with .zip" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["archive", str(tmp_path / "file" / "rocketpoll.zip")]) == 1
    assert "rocketpoll archive: " in capsys.readouterr().err
