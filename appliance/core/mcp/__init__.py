"""The Model Context Protocol, in both directions: configuration, messages, serving.

Refuses to hold a connection.
"""
