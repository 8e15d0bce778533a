"""Tables: rows of data that lie in files, in databases or in the objects of other libraries."""
