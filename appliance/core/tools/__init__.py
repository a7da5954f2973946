"""What the built-in tools decide: names, edits, lines, patterns, targets. Refuses to touch a file or a process."""
