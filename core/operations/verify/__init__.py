"""Whether a version is complete and correct: `check` one version or several, and seal those that are whole."""
