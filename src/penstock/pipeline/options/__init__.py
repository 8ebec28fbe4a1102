"""Options of a server's decoder and of one stream: declarations, offers and checks."""
