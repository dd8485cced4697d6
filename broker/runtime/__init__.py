"""The parts of a running broker: processors, tables, their reconciliation, and periodic jobs."""
