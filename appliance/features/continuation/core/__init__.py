"""Beginnings of streams, requests that go on with them, and the second half as part of one answer. Pure.

Refuses to ask an engine: the course of a request does.
"""
