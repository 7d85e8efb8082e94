"""From the typed options of a verb to the request that it carries out."""
