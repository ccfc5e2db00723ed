"""Held-out loss of methods that train on the same sentences with the same rates and seeds."""
