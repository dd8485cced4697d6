from benchmarks.spark import tasks


def test_a_task_is_measured_with_and_without_the_check_of_bodies(capsys):
    tasks.main(["--megabytes", "1", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        f"{size} B, columns {columns}, checkCrc={checked}"
        for size in (100, 1000)
        for columns in ("default", "body")
        for checked in ("false", "true")
    ]
    assert all("for 1,000,000 rows" in line or "times" in line for line in lines)
