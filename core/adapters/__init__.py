"""Arrays of other libraries as those of the engine and back; each library is imported where it is used."""
