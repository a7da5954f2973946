"""Which models exist: paths, model folders, the Hugging Face cache, the starter model.

Refuses to start anything; it only reads headers and names."""
