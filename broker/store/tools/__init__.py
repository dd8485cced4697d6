"""Tools for stores that no broker has open: dump, stat, verify."""
