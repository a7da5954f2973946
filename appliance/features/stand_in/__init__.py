"""The stand-in for llama-server: its options, modes and environment.

Refuses to answer requests: it only makes settings.
"""
