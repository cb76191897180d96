"""Inner loops over many ids or rows: in numpy, which is the reference, and in C, which does the same."""
