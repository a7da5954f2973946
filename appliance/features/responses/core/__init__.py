"""The translation of OpenAI's Responses API, pure."""
