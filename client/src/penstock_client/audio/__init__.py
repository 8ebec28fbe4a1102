"""Audio of pipes and microphones as samples."""
