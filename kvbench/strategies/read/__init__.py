"""Ways of gathering cached tokens' K/V from the pool."""
