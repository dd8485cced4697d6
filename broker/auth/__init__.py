"""Access control: who a client is, and what it may do.

Other packages use `access_control`. `request_rights` lists the rights that each request needs.
"""
