"""The threads of a loader: they run the part of a pipeline that Python runs, and read ahead."""
