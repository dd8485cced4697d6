"""Clients: how they connect and leave, and requests that the broker relays between them."""
