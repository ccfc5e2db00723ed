"""Rewrites of training graphs, one a file."""
