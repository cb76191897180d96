"""One pass over values: fingerprints, seals, and the proof of what was written."""
