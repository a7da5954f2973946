"""llama-server's older words and its presets as values; no I/O, no clock."""
