"""Many batches in one program: `scan_epoch`, and `evaluate`."""
