from rmq_spark.cli.demo.view import Batch, Figures, line, screen, summary


def batch(at, rows=1_000, **more):
    return Batch(rows=rows, ended_at=at, seconds=0.5, latency_p50=0.3, latency_p95=0.4, **more)


def test_before_the_first_batch_there_is_nothing_to_tell_but_what_was_sent():
    lines = screen(Figures(100.0, 30, sent=5_000), "demo", 103.0)
    assert lines[0] == "demo     3 s of 30"
    assert "5,000" in lines[1]
    assert "warms Spark up" in lines[-1]


def test_a_screen_tells_rate_lag_and_latency():
    batches = [
        batch(101.0),
        batch(102.0, 2_000),
        batch(103.0, 4_000, lag_messages=70, lag_bytes=2_000_000, lag_ms=9),
    ]
    text = "\n".join(screen(Figures(100.0, 30, 8_000, batches), "demo", 104.0))
    assert "7,000        3,000 rows/s  ▂▄█" in text
    assert "70   messages, 2.0 MB, 9 ms" in text
    assert "0.30 s   p50, 0.40 s p95" in text
    assert "the last: 4,000 rows in 0.50 s" in text


def test_time_stands_still_at_the_end():
    assert screen(Figures(100.0, 30), "demo", 500.0)[0] == "demo    30 s of 30"


def test_the_summary_says_whether_all_was_read():
    figures = Figures(100.0, 30, 3_000, [batch(101.0), batch(102.0, 2_000)])
    lines = summary(figures)
    assert lines[0] == "sent 3,000 messages, read 3,000 rows in 2 batches: every one of them once"
    assert lines[1].startswith("rows per second 2,000; medians: latency p50 0.30 s, p95 0.40 s")
    figures.sent = 3_001
    assert "NOT the same number" in summary(figures)[0]
    assert summary(Figures(0, 1, 7)) == ["sent 7 messages; no batch has ended"]
    assert len(summary(Figures(100.0, 30, 1_000, [batch(101.0)]))) == 2


def test_a_batch_in_one_line():
    assert line(batch(1.0, lag_messages=5), 3) == (
        "batch 3: 1,000 rows in 0.50 s, latency p50 0.30 s, lag 5 messages"
    )
