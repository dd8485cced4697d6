"""How fast rocketpoll is, measured and reported in one way for every part of it: see README.md.

Nothing of the project imports this.
"""
