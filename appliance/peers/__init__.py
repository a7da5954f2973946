"""Knows the other servers: their health, their models and the loaded ones, and the order in which to ask them.

Refuses to send a client's request itself, to start models anywhere, and to pass a client's own key on.
"""
