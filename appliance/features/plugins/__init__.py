"""Runs plugins: a prompt that begins with a slash command passes through them, and so does its answer.

Refuses to change a request that names none, or to take plugins over HTTP.
"""
