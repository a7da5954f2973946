"""``run``, a chat with a model in the terminal; see README.md.

Refuses to keep a conversation: it ends with its command.
"""
