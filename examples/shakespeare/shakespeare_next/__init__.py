"""The next character of Shakespeare, learned by roles: the task is in task.py."""
