"""The parts of a running broker, built, checked against each other, and kept in order."""
