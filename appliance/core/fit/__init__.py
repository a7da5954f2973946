"""Memory of a model before it is loaded: what it is made of, what it will take, and how much of it to put where.

Refuses to look: files are read by ``core.gguf``, free memory is handed in."""
