"""Clocks, the rounds they sample in, and the copy that bandwidth is held against."""
