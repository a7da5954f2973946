"""llama-server's options: the table of them, and presets.

Refuses to start a llama-server.
"""
