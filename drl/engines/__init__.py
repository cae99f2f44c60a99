"""Tensor math, once per framework. Engines never see each other."""
