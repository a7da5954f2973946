"""Ollama's API as values: its requests become llama-server's, and answers become Ollama's; no I/O, no clock."""
