"""TLS of the broker's port: certificates and their settings, and connections under TLS.

    validity    when a certificate is valid, from its bytes
    context     files and settings to an OpenSSL context, or what is wrong with them
    server_tls  the TLS of one server: what new connections get, reload, warnings, counters
    transport   one connection: records in a stream, handshake, decryption, encryption

Only `client_connection` and the controller use it.
"""
