"""The terminal, streams and files: what is printed, how wide, in which colours, and what signals do."""
