"""The decisions of the tools: arguments, edits, lines, patterns, and the messages of MCP in both directions.

Refuses to touch a file or a process, or to hold a connection.
"""
