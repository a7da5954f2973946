"""Vertex AI's predictions; see README.md.

Refuses to stream: one answer holds all.
"""
