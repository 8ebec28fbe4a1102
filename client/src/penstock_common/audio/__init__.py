"""Audio of files and raw streams as samples."""
