"""Handwritten digits, learned together: the task is in task.py."""
