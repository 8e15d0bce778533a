"""From the index of a combined source to a row of its data."""
