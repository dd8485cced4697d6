"""Instance: connections, routes and heartbeats that a process's producers and consumers share."""
