"""Chosen elements of the weights, one slot for all."""
