"""Federated algorithms at equal planned operations."""
