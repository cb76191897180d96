"""The versions of a location: listed, grouped, referred to, and where new ones go."""
