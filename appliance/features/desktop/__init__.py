"""The program of a user's desktop: a server for the session, the page, and an icon.

Refuses to draw windows, and to serve: the server is a process of its own.
"""
