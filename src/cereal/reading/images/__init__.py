"""Images: from encoded bytes, a file or a PIL image to an array."""
