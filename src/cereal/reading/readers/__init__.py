"""What reads the elements of each kind of source."""
