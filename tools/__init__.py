"""Scripts that draw and check the project itself."""
