"""Files of all formats: which ones a user means, and whether they stay the same."""
