"""WebSockets of clients: accepted on the program's own connection, and served by the routes that are for them.

Refuses to look into messages.
"""
