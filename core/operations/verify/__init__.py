"""Whether a version is complete and correct: `check` one version, `versions` for several, `seals` to seal them."""
