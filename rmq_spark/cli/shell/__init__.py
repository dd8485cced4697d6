"""What all commands share: connections, output, errors, positions."""
