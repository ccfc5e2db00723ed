"""What reproduces the papers' tables and renews pages of measurements; the product imports nothing of it."""
