"""MNIST-5k over a hundred uneven clients: the task is in task.py."""
