"""The rules of conversations, and the formats in which they come and go.

Refuses I/O.
"""
