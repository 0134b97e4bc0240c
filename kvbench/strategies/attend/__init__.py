"""Ways of attending over a paged cache."""
