"""Public policies: which words of a private row are sensitive, and the row with these words hidden."""
