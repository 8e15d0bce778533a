"""What Python runs: the context of a read, elements, buffers, and host data inside of programs."""
