"""Sources made of other sources: joined, mixed, zipped, cut, split."""
