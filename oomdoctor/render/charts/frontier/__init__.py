"""Memory against throughput: the sizes of rungs as points, their front, and the drawing."""
