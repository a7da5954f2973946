"""llama-server's options: the table of them, and requests with schemas.

Refuses to start a llama-server.
"""
