"""Benchmarks of every part of rocketpoll, measured and reported in one way: see README.md.

Nothing of the project imports this.
"""
