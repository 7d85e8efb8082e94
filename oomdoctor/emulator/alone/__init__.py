"""One rank runs on an emulated GPU, and what needs the others is answered for them."""
