"""The ways of writing and reading a paged KV cache: one class, one file, one way."""
