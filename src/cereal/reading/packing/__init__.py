"""Elements as columns that can be written to files: fixed, ragged, text, bytes."""
