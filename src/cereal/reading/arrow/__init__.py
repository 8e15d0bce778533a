"""Arrow's arrays as columns of tables: numbers without a copy, text, lists, categories."""
