"""The parts that all commands share: connections, output, errors, positions."""
