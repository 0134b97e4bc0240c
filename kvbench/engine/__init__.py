"""A small model that generates over a paged cache, with any write strategy and any attention."""
