"""TLS on connections: its settings, and the client side of the handshake."""
