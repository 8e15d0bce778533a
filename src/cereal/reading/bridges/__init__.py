"""Other libraries' objects, read without importing their libraries; one file for each library."""
