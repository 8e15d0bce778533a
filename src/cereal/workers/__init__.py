"""Who reads what Python makes for a loader: threads, and what they have read ahead."""
