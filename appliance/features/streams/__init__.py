"""Answers that outlive their requests: what an ``X-Conversation-Id`` asks for, and how a client comes back to one.

Refuses to know the meaning of the bytes, and who answers.
"""
