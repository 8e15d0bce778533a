"""What a user's function means: proved unchanged, or traced again."""
