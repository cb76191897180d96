"""Following a job that saves: waiting for a version, the events of a location, its versions in order."""
