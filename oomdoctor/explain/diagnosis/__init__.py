"""Why memory ran out, and which tensor did not fit."""
