"""Keeps versions of the program side by side, tries a new one beside the running server, and leads each start to one.

Refuses to fetch anything, and to touch a program that a package manager installed.
"""
