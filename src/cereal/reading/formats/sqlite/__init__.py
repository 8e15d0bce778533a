"""SQLite: a query over a file, its columns, and its rows."""
