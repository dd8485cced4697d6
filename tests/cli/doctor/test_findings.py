"""The doctor's report has a line for each check and a remedy for each fault."""

from rmq_spark.cli.shell.health_check import HealthCheck, report_lines

GOOD = HealthCheck("Java", "Java 17")
FAULT = HealthCheck("topic", "there is none", "create it")
SKIPPED = HealthCheck("brokers", "not asked", is_skipped=True)


def test_doctor_report_has_a_line_per_check_and_remedies_for_faults():
    assert list(report_lines([GOOD, FAULT, SKIPPED])) == [
        "ok    Java     Java 17",
        "FAIL  topic    there is none",
        "               fix: create it",
        "-     brokers  not asked",
        "",
        "1 of 3 checks failed",
    ]


def test_doctor_report_without_faults_says_ready():
    assert list(report_lines([GOOD, SKIPPED]))[-1] == "everything is ready"


def test_doctor_report_with_warnings_does_not_say_ready():
    warned = HealthCheck("groups", "nobody consumes them", "start consumers", is_warning=True)
    assert list(report_lines([GOOD, warned]))[-1] == "no check failed, 1 warned"


def test_doctor_report_wraps_long_lines_in_a_terminal():
    fault = HealthCheck("Java", "there is none", "run apt-get install -y openjdk-17-jre-headless")
    assert list(report_lines([fault], columns=40))[:4] == [
        "FAIL  Java  there is none",
        "            fix: run apt-get install -y",
        "            openjdk-17-jre-headless",
        "",
    ]
