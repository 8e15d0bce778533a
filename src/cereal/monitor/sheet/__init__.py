"""Many elements on one picture: what to draw of them, what to write below, and how."""
