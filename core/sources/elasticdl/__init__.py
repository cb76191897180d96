"""ElasticDL's own format: names, wire generations, placement, and the layout of a shard."""
