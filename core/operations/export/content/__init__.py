"""A version on its way out: the selected variables and tables, read once, in bounded memory."""
