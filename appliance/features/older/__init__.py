"""Bodies and figures of earlier llama-server releases, asked of today's engines. Refuses to change a body of today."""
