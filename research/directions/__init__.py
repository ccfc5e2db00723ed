"""What a frozen A leaves of gradients."""
