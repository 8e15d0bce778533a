"""Around the part that Python runs: the data of sources, threads, callbacks of programs."""
