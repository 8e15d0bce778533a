"""Arrays in files: archives that are mapped, and stores of chunks."""
