"""Compilation of a model to a bundle: plan, programs, weights and verification."""
