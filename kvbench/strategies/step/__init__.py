"""Whole decode steps: a model whose K and V any write stores and any attention reads."""
