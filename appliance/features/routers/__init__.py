"""Answers for routers in front of several servers; see README.md.

Refuses to say what only SGLang's own server may say.
"""
