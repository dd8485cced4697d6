from benchmarks.spark import planning


def test_both_batches_are_planned(capsys):
    planning.main(["--topics", "3", "--queues", "2", "--rounds", "1"])
    said = capsys.readouterr().out
    assert said.startswith("3 topics of 2 queues, median of 1: the first batch ")
    assert "the next" in said
