"""OpenAI's Responses API, translated to llama-server's chat completions and back; see README.md.

Refuses to store a response, and to run a tool.
"""
