"""What stands in for runtimes of other systems on this machine; not part of what a bundle needs."""
