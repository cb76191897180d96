"""The format: names, wire generations, placement, and the layout of a shard. Bytes to index, index to bytes."""
