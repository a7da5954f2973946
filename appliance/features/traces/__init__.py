"""Finished requests as traces for a collector; see README.md.

Refuses to hold a request up, and to tell what anybody wrote.
"""
