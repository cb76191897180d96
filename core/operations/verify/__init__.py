"""Whether a version is complete and correct: `check` one version or several, `seals` to seal them."""
