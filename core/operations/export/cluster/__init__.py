"""An export by the workers of a cluster: each task writes one whole file."""
