"""Ollama's API on the server's port: it translates both ways and decides nothing; `core.ollama` has the words."""
