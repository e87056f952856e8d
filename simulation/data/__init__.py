"""Data at scale: the examples of many clients, and real sets to try things on.

mapped.py has what every client owns as slices of arrays that are mapped from files. Real sets come
with packages that installed.py finds: images.py has handwritten digits, movielens.py ratings by
user, shakespeare.py speeches by role, smartwatch.py motions by person.
"""
