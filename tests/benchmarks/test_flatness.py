"""The flatness benchmark runs and prints a row for each number of each kind."""

import json

from benchmarks.turns import flatness


def test_flatness_benchmark_rows_have_two_figures(capsys, tmp_path):
    few = ["--messages", "2000", "--clients", "10", "--queues", "40", "--rounds", "1"]
    flatness.main([*few, "--json", str(tmp_path / "flatness.json")])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [" ".join(row[:2]) for row in rows] == [
        "1,000 messages",
        "2,000 messages",
        "1 clients",
        "10 clients",
        "4 queues",
        "40 queues",
    ]
    assert all(float(figure) > 0 for row in rows for figure in row[2:])
    assert {len(row) for row in rows} == {4}
    report = json.loads((tmp_path / "flatness.json").read_text())
    written = [(f"{each['count']:,}", each["kind"]) for each in report["results"]]
    assert written == [(row[0], row[1]) for row in rows]
    assert all(each["send_us"] > 0 < each["pulled_us"] for each in report["results"])
