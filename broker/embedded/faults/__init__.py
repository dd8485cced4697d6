"""Faults that tests inject into an embedded broker: disk, network, clock, power."""
