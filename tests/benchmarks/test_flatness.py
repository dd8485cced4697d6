"""The benchmark of flatness runs, and prints a row for each number of each kind."""

from benchmarks.turns import flatness


def test_each_row_has_two_figures(capsys):
    flatness.main(["--messages", "2000", "--clients", "10", "--queues", "40", "--rounds", "1"])
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
