"""Where a version can be written to: for each system, which files its tables and variables become."""
