"""Chats that the program itself takes part in: plugins behind slash commands, and tools used on the server.

Refuses to talk to a model in any other way than a client does."""
