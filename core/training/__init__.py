"""The engine inside a training job: who saves what and when, and how a job comes back from a failure."""
