from benchmarks.store import many_queues


def test_it_says_how_long_each_start_of_a_store_with_many_queues_takes(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(
        many_queues, "_DROP_CACHES", tmp_path / "drop_caches"
    )  # those of the machine stay
    monkeypatch.setattr("sys.argv", ["many_queues", "--queues", "9"])
    many_queues.main()
    said = capfd.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in said[:4]] == [
        "checkpoint, 9 queues to flush",
        "stop behind it",
        "start after a stop",
        "start after a crash",
    ]
