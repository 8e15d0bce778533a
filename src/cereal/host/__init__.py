"""The parts of a pipeline that Python runs: elements, buffers, threads, callbacks of programs."""
