"""Websockets of models and peers, joined with those of clients; see README.md.

Refuses to look into messages that it passes on.
"""
