"""Admin: operations on whole clusters, for operators and notebooks, and the display of results."""
