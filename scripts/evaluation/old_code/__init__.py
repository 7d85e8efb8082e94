"""What the code of published runs did differently, as patches for one simulation."""
