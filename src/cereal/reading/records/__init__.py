"""Records: bytes in files (TFRecord, ArrayRecord), and what they mean."""
