"""The broker as a process: its log, its service manager, its imports."""
