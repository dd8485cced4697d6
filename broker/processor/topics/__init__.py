"""Topics: their settings, their routes as a name server tells them, and the texts kept beside them.

Nothing here knows sends and pulls.
"""
