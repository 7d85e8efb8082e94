"""A report as one page for a browser: tables, charts, no script and no request."""
