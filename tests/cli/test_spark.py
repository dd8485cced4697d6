"""The installed PySpark is found, or its wanted version is named."""

from rmq_spark.cli.spark.spark_runtime import INSTALL_PYSPARK, has_pyspark


def test_installed_pyspark_is_found():
    assert has_pyspark()


def test_missing_pyspark_message_names_the_wanted_version(pyspark_that_is_missing):
    assert not has_pyspark()
    assert INSTALL_PYSPARK.endswith(f"-m pip install '{pyspark_that_is_missing}'")
