"""Benchmarks of every part of rocketpoll, with common measuring and reporting: see README.md.

Nothing of the project imports this.
"""
