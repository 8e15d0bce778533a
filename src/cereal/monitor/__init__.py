"""Looking at a pipeline: its drawing, its progress."""
