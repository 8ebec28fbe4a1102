"""Audio of files, pipes and microphones as samples."""
