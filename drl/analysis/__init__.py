"""Statistical comparisons of algorithms, and reproductions of stored results."""
