"""Worker processes, seen from the loader: how they are started, asked, lost and ended."""
