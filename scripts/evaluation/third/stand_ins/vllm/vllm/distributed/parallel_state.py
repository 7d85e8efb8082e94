"""Groups of ranks: an engine has one."""
