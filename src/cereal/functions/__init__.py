"""Whether a user's function still does the same: proved unchanged, or traced again."""
