"""Documents of the user to a rung: recognize, flatten, apply a table, merge, conclude."""
