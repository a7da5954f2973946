"""Anthropic's Messages for models whose process speaks llama-server's chat completions; see README.md.

Refuses to run anything that Anthropic's own servers would run: their tools, their files, their stored threads.
"""
