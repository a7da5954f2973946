"""Starts coding clients with a model of the running server; see README.md.

Refuses to install clients, and to write secrets into their settings.
"""
