"""The program of a user's desktop: a server for the session, the page, and an icon; see README.md.

Refuses to draw windows, and to serve: the server is a process of its own.
"""
