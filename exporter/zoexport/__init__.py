"""Compile a language model into a bundle that fine-tunes itself on a phone, and bring the adapter back.

Importing the package loads none of the compilers behind it: each verb imports what it needs.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
