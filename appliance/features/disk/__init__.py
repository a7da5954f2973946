"""The room that models, downloads and folders take on the disk; see README.md.

Refuses to remove anything.
"""
