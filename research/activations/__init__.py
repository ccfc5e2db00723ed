"""What rounding the inputs of linear layers costs."""
