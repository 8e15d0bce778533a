"""File formats: one file for each says how its rows are found and read."""
