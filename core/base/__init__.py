"""What all rooms need: errors, words, numbers, arrays, progress, and work as tasks."""
