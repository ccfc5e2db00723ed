"""What is done with a bundle: train, evaluate, generate, chat, and adapters in and out."""
