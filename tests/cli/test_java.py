"""The installed Java is detected; a missing or old one is named with the remedy."""

import os

import pytest

from rmq_spark.cli.spark.spark_runtime import (
    INSTALL_PYSPARK,
    Java,
    find_java,
    has_pyspark,
    java_fault,
)


@pytest.fixture
def java(tmp_path, monkeypatch):
    """Return a function that installs a fake ``java`` with a given output."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin{os.pathsep}/usr/bin")

    def saying(text):
        path = tmp_path / "java"
        path.write_text(f"#!/bin/sh\ncat >&2 <<'X'\n{text}\nX\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    return saying


@pytest.mark.parametrize(
    ("text", "version", "is_new_enough"),
    [
        ('openjdk version "17.0.12" 2024-07-16', 17, True),
        ('openjdk version "21" 2023-09-19', 21, True),
        ('java version "1.8.0_402"', 8, False),
        ("Error: no JVM", None, False),
    ],
)
def test_java_version_is_detected(java, text, version, is_new_enough):
    path = java(text)
    found = find_java()
    assert found == Java(str(path), version)
    assert found.is_new_enough is is_new_enough
    assert (java_fault() is None) is is_new_enough


def test_too_old_java_is_named_with_the_remedy(java):
    path = java('java version "1.8.0_402"')
    assert java_fault().startswith(f"{path} is Java 8. Spark 4 needs Java 17 or 21. On Debian")


def test_java_home_without_java_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_fault().startswith(f"JAVA_HOME={tmp_path} has no bin/java")


# ---- the installed PySpark is found, or the required version is named


def test_installed_pyspark_is_found():
    assert has_pyspark()


def test_missing_pyspark_message_names_the_wanted_version(pyspark_that_is_missing):
    assert not has_pyspark()
    assert INSTALL_PYSPARK.endswith(f"-m pip install '{pyspark_that_is_missing}'")
