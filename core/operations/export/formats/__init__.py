"""The formats of exports."""
