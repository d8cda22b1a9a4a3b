"""Task lists in files: what a caller declares about one, and how the service reads it."""
