"""Why memory ran out: rules, the conditions that they name, and the order of what applies."""
