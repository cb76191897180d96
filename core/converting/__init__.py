"""A version written anew in a system's own files: renamed, cast, filtered, spread over other ranks, and proved."""
