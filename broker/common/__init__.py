"""What several rooms of the broker use: connections, settings, histograms, local time."""
