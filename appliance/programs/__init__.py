"""Keeps versions of the program side by side, and tries a new one beside the running server.

Refuses to fetch anything, and to touch a program that a package manager installed.
"""
