"""Parts that several packages of the broker share: connections, settings, histograms, threads."""
