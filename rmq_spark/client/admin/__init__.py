"""Admin: what operators and notebooks do with whole clusters, and how the results are shown.

It uses the instance and `reading`; no other room of the client knows it.
"""
