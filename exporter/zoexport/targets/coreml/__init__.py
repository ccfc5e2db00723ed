"""Apple's Core ML: a multifunction package whose functions are the stages of a model, forward and backward."""
