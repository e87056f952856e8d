"""What a person looks at after a run: one self-contained page."""
