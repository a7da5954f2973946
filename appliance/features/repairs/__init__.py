"""Changes chats that an engine refuses so that it takes them, and tells what it changed; see README.md.

Refuses to change a body that the engine takes as it is, and to lose a word of one.
"""
