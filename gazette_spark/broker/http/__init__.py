"""A broker's HTTP side: the gateway to its journals, and its fragment files by signed URLs."""
