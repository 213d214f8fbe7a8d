"""Text that leaves the engine: for a terminal, a shell or a Markdown page. What comes from data stays inert in it."""
