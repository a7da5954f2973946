"""Requests and answers as bytes: HTTP/1.1 messages, JSON and forms edited in place, server-sent events.

Refuses to hold a socket: bytes in, values out.
"""
