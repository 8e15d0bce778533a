"""Sources made of sources: joined, mixed, zipped, cut, split."""
