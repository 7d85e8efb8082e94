"""The Python that the user trains with: asked, or made for `--with`."""
