"""What is left of a state when writing it is cut short at any call: kills, failing calls, and lost power."""
