"""LM Studio's REST API, for clients that know no other; see README.md. Refuses its cloud, plugins and stored chats."""
