"""The store's files: a disk that tests can replace, fixed-size files, JSON tables, locks."""
