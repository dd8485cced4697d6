"""Clients: heartbeats and disconnects, and requests that the broker relays between clients."""
