"""Buffers: they store what the learner learns from."""
