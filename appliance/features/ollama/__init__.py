"""Ollama's API on the server's port: requests become llama-server's, and answers Ollama's. Refuses Ollama's cloud."""
