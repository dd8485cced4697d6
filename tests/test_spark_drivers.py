"""Test support for Spark drivers: each read of a query's sink returns the new rows."""

import json

from support.spark.driver_processes import Query


def test_new_rows_of_a_query_sink_reads_only_new_batches(tmp_path):
    query = Query(tmp_path)
    assert query.new_rows() == []
    for batch_id in range(3):
        (query.sink / f"{batch_id:06d}.json").write_text(json.dumps([[batch_id, "row"]]))
    (query.sink / "000003.17.tmp").write_text("[")  # an incomplete file
    assert query.new_rows() == [[0, "row"], [1, "row"], [2, "row"]]
    (query.sink / "000000.json").write_text("no rows: nobody looks at it again")
    (query.sink / "000003.json").write_text("[]")
    (query.sink / "000004.json").write_text(json.dumps([[4, "row"]]))
    assert query.new_rows() == [[4, "row"]]
    assert query.new_rows() == []
