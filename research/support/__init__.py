"""What the reports share: marked parts of pages, results that are kept, runs, the command."""
