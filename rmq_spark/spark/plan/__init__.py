"""The planning of micro-batches: where each starts and ends, and what its tasks read."""
