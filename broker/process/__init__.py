"""The broker as a process: its log, its service manager, and the first steps of a start."""
