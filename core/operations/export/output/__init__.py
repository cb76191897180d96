"""Where an export goes: files and places in them, and targets that become visible whole or not at all."""
