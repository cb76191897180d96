"""Completion in bash, zsh and fish: what a word on the command line can become.

The scripts in `completions/` are small, and the same in spirit: they hand the words over and take the candidates. All
else is here, once, for the three shells: `grammar` says what is expected at the cursor, from a table that `table` makes
of the parser; `values` finds it in a place; `shells` knows how each shell quotes. A shell waits for the answer, so
typer, rich and numpy are never imported, and whatever takes too long is left out.
"""
