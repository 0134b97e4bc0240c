"""Ways of building the slot mapping of a batch's new tokens, once per step."""
