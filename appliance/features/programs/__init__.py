"""Versions of the program side by side: a newer one is tried beside the running server, switched to, returned from.

Refuses to fetch anything, and to touch a program that a package manager installed. See README.md.
"""
