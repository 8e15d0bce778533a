"""Results that are kept: their names, their files, and the check that they are still right."""
