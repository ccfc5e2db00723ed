"""What masks of sensitive weights cover of squared gradients, and training by them."""
