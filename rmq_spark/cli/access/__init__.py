"""Users, access lists, and what is wrong with certificates and credentials."""
