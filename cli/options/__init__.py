"""Options and references: types, configuration, environment, and the errors that explain them."""
