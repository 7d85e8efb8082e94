"""Adapters: not here."""
