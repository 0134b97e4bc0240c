"""Ways of storing new tokens' K/V in the pool."""
