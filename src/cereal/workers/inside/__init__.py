"""What runs inside of a worker process. It imports NumPy, never JAX, nor the user's script."""
