"""The commands; `catalogue` names the module of each, which most have to themselves."""
