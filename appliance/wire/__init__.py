"""The shapes that cross a boundary, as msgspec Structs.

Refuses behaviour."""
