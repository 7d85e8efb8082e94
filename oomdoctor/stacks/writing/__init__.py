"""A rung as the configuration file of a program; scripts are written elsewhere."""
