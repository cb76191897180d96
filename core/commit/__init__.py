"""How a version becomes visible, and how an interrupted commit is finished, rolled back or resumed."""
