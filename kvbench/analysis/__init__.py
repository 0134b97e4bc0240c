"""Pure functions on samples and on frames of rows: no torch, no input or output."""
