from rmq_spark.cli.spark.spark_runtime import INSTALL_PYSPARK, has_pyspark


def test_installed_pyspark_is_found():
    assert has_pyspark()


def test_without_it_the_command_names_the_one_that_the_project_wants(pyspark_that_is_missing):
    assert not has_pyspark()
    assert INSTALL_PYSPARK.endswith(f"-m pip install '{pyspark_that_is_missing}'")
