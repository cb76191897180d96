"""Our own files in `.edl-ckpt-0/`: their names, their schemas, and locks."""
