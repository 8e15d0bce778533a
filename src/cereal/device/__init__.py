"""WHERE data lies, how rows of it are gathered, and how they travel."""
