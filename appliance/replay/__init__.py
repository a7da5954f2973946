"""A generation that many may read: what it has said, from any offset, while it goes on.

Refuses to know its readers, the meaning of its bytes, and how long it is kept.
"""
