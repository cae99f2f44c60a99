"""Is a difference real? Comparisons of algorithms and reproductions of stored results."""
