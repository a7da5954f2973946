"""Models: their names, their files' headers, and what a download of them consists of.

Refuses to read a file or to ask a hub.
"""
