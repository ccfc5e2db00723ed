"""All of the model's weights, a slot for each parameter."""
