from rmq_spark.cli.doctor.findings import Diagnosis, report_lines

GOOD = Diagnosis("Java", "Java 17")
FAULT = Diagnosis("topic", "there is none", "create it")
SKIPPED = Diagnosis("brokers", "not asked", is_skipped=True)


def test_each_has_a_line_and_a_fault_has_its_remedy():
    assert list(report_lines([GOOD, FAULT, SKIPPED])) == [
        "ok    Java     Java 17",
        "FAIL  topic    there is none",
        "               to mend it: create it",
        "-     brokers  not asked",
        "",
        "1 of 3 to mend",
    ]


def test_without_faults_all_is_well():
    assert list(report_lines([GOOD, SKIPPED]))[-1] == "all is well"
