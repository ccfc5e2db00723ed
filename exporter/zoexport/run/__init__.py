"""Verbs of a bundle: train, evaluate, generate, chat, export and import adapters."""
