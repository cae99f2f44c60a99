"""What the learner sees. Stores, never computes a loss."""
