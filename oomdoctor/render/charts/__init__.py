"""Charts of a report, one module a chart: what each shows, and how matplotlib draws it."""
