"""Access control: who a client is, and what it may do.

`access_control` is what the other rooms use. `request_rights` says what each request needs.
"""
