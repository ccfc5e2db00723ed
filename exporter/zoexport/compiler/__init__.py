"""From a model to a bundle: the plan, the programs, the weights, and the proof that what was written is right."""
